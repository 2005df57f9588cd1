"""README.md and the first steps of the documentation: every block runs, from the first line to the last, in one shell.

Lines that begin with `make` are asked for with `make -n`: `make demo`, `make test` and `make shops` take minutes, and
what they start has tests of its own.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from oncehouse.messaging import Outbox
from page_shell import ROOT, PageShell, blocks, lend_packages, open_checkout

PAGE, FIRST_STEPS = "README.md", "docs/index.md"
DRAWINGS = 2
"""Blocks without a language, which nobody runs."""
MADE = {"demo": "examples/demo/demo.py", "test": "-m pytest", "shops": "examples/django-shop/run.py"}
"""What a target starts; tests of their own run it: test_demo, the session itself, test_shops."""


def sections() -> dict[str, list[tuple[str, str]]]:
    """Blocks by the heading that they stand under."""
    found: dict[str, list[tuple[str, str]]] = {}
    for page in (PAGE, FIRST_STEPS):
        for heading, body in re.findall(
            r"^##+ (.*?)\n(.*?)(?=^##|\Z)",
            (ROOT / page).read_text(encoding="utf-8"),
            re.DOTALL | re.MULTILINE,
        ):
            if told := re.findall(r"^```(\w+)\n(.*?)^```$", body, re.DOTALL | re.MULTILINE):
                found[heading] = told
    return found


def test_every_block_is_one_that_is_run_here():
    assert {heading: [kind for kind, _ in told] for heading, told in sections().items()} == {
        "See it work": ["sh"],
        "Use it": ["sh", "python"],
        "Facts from Stage tables": ["sh"],
        "Rows of your models": ["python", "sh"],
        "Between services": ["python", "sh"],
    }
    fences = [
        fence
        for page in (PAGE, FIRST_STEPS)
        for fence in re.findall(r"^\s*(?:```|~~~)", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(fences) == 2 * (DRAWINGS + sum(len(found) for found in sections().values()))


def test_the_readme_stays_short():
    before, _, _ = (ROOT / PAGE).read_text(encoding="utf-8").partition("## Read on")
    assert len(before.splitlines()) <= 100


def made() -> list[str]:
    lines = [
        line
        for kind, block in [*blocks(PAGE), *blocks(FIRST_STEPS)]
        if kind == "sh"
        for line in block.splitlines()
    ]
    return [words[1] for line in lines if (words := line.split())[0] == "make"]


def test_every_target_named_is_one_that_is_known_here():
    assert set(made()) == set(MADE)


@pytest.mark.parametrize("target", MADE)
def test_a_target_starts_what_it_is_named_for(target):
    planned = subprocess.run(
        ["make", "-n", target], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    )
    assert MADE[target] in planned.stdout


def test_the_message_of_an_order_is_kept_with_it_or_not_at_all(tmp_path):
    (_, block), _ = sections()["Between services"]
    names: dict[str, object] = {}
    exec(compile(block, PAGE, "exec", dont_inherit=True), names)
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")
    Outbox().metadata.create_all(engine)
    with Session(engine) as session:
        names["place_order"](session, 17)
    with engine.connect() as connection:
        (row,) = connection.execute(text("SELECT topic, key, value FROM oncehouse_outbox")).all()
    engine.dispose()
    assert (row.topic, row.key, json.loads(row.value)) == ("orders", b"17", {"order": 17})


class Reader:
    """Who types what the page says, and looks after each step at what has come of it."""

    def __init__(self, shell: PageShell, checkout: Path) -> None:
        self.shell, self.checkout = shell, checkout
        self.address: dict[str, str] = {}

    def type(self, line: str) -> str:
        """One line, without its comment; it has to end well."""
        (answer,) = self.shell.run_all(line.partition(" #")[0])
        return answer.text

    def ask(self, line: str) -> dict:
        return json.loads(self.type(f"{line} --json 2>/dev/null"))

    def leave_running(self, line: str, is_enough: Callable[[], bool]) -> None:
        """A line that goes on until Ctrl-C, which comes when there is enough."""
        where, path = self.type("pwd").strip(), self.type("echo $PATH").strip()
        names = ("DJANGO_SETTINGS_MODULE", "CLICKHOUSE_URL", "PGPORT")
        environment = {name: self.type(f"echo ${name}").strip() for name in names}
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"], cwd=where, env={"PATH": path, "NO_COLOR": "1", **environment}
        )
        try:
            while not is_enough():
                assert process.poll() is None, f"{line}: it ended by itself, {process.returncode}"
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(timeout=120)
        assert code in {0, 130}, f"{line}: exit {code}"

    def look_around(self) -> None:
        parts = self.ask("oncehouse dev status")["parts"]
        self.address = {part["part"]: part["address"] for part in parts}

    def query(self, statement: str) -> str:
        with urlopen(self.address["clickhouse"], statement.encode(), timeout=60) as answer:
            return answer.read().decode()

    def count(self, table: str) -> int:
        return int(self.query(f"SELECT count() FROM {table}"))


@pytest.fixture
def reader(tmp_path) -> Iterator[Reader]:
    with open_checkout(tmp_path) as shell:
        checkout = tmp_path / "checkout"
        shutil.copytree(ROOT / "examples", checkout / "examples")
        shell.run_all("python3 -m venv .venv && . .venv/bin/activate")
        lend_packages(checkout / ".venv")
        yield Reader(shell, checkout)


def lines_of(heading: str) -> Iterator[str]:
    """The lines of its shell block that no target of make is."""
    ((_, block),) = [told for told in sections()[heading] if told[0] == "sh"]
    return (line for line in block.splitlines() if not line.startswith("make "))


def make_topic(servers: str, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)


def send_events(servers: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in numbers:
        event = {"project": "shop", "event_type": "view", "product_id": number, "price": "9.99"}
        event |= {"created_at": "2026-01-01T12:00:00.000Z", "tags": [], "attributes": {}}
        producer.produce("events", json.dumps(event))
    assert producer.flush(60) == 0


def use_it(reader: Reader) -> None:
    install, up, init, create, check, run, status, verify = lines_of("Use it")
    for line in (install, up, init):
        reader.type(line)
    reader.look_around()
    kafka = reader.address["kafka"]
    file = reader.checkout / "pipeline.yaml"
    told = file.read_text(encoding="utf-8")
    for old, new in (("localhost:9092", kafka), ("http://localhost:8123", reader.address["clickhouse"])):
        assert old in told
        told = told.replace(old, new)
    file.write_text(told, encoding="utf-8")
    make_topic(kafka, "events", 2)
    send_events(kafka, range(300))
    for line in (create, check):
        reader.type(line)
    reader.leave_running(run, lambda: reader.count("events") == 300)
    for line in (status, verify):
        reader.type(line)

    _, (_, program) = sections()["Use it"]
    (reader.checkout / "program.py").write_text(program, encoding="utf-8")
    send_events(kafka, range(250, 310))
    assert reader.type("python program.py 2>/dev/null").strip().endswith("10 new, 50 duplicates")
    assert reader.count("events") == 310


def build_facts(reader: Reader) -> None:
    example, init, check, run, status = lines_of("Facts from Stage tables")
    assert "dwh.daily" in reader.type(example)
    # The same settings, on the servers of the first section.
    reader.type(f"export CLICKHOUSE_URL={reader.address['clickhouse']}")
    reader.type("cd examples/etl")
    reader.type(init)
    tables = (reader.checkout / "examples" / "etl" / "tables.sql").read_text(encoding="utf-8")
    for statement in re.sub(r"^--.*\n", "", tables, flags=re.MULTILINE).split(";\n"):
        if statement.strip():
            reader.query(statement)
    reader.type(check)
    reader.query("INSERT INTO stage.customers (id, pos, customer, country) VALUES (1, '2026-01-01', 7, 'at')")
    reader.leave_running(run, lambda: reader.count("dwh.customers") == 1)
    assert "Customers" in reader.type(status)
    reader.type("cd ../..")


def sync_models(reader: Reader) -> None:
    (_, declared), _ = sections()["Rows of your models"]
    run, status = lines_of("Rows of your models")
    shop = reader.checkout / "examples" / "django-shop"
    (shop / "shop" / "clickhouse_models.py").write_text(declared, encoding="utf-8")
    (shop / "shop" / "migrations" / "0002_clickhouse.py").unlink()  # of syncs that are not on the page
    port = reader.address["postgres"].rpartition("/")[0].rpartition(":")[2]
    reader.type("cd examples/django-shop")
    reader.type(f"export DJANGO_SETTINGS_MODULE=settings PGPORT={port}")
    engine = create_engine(reader.address["postgres"], isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("CREATE DATABASE shop"))
    engine.dispose()
    reader.query("CREATE DATABASE shop")
    reader.type("python manage.py migrate --verbosity 0")
    reader.type("oncehouse sync apply")
    place = (
        "from django.utils.timezone import now; from shop.models import *; "
        "c = Customer.objects.create(name='Ann', email='a@example.org', country='at'); "
        "Order.objects.create(customer=c, placed_at=now())"
    )
    reader.type(f'python manage.py shell -c "{place}"')
    reader.leave_running(run, lambda: reader.count("shop.orders") == 1)
    assert "OrderSync" in reader.type(status)
    reader.type("cd ../..")


def send_messages(reader: Reader) -> None:
    (_, declared), _ = sections()["Between services"]
    _, init, relay, status = lines_of("Between services")
    kafka, database = reader.address["kafka"], reader.address["postgres"]
    make_topic(kafka, "orders", 1)
    (reader.checkout / "messaging.yaml").write_text(
        f"kafka: {{bootstrap_servers: '{kafka}'}}\ndatabase: {database}\n", encoding="utf-8"
    )
    reader.type(init)
    caller = "from sqlalchemy import create_engine\n\nplace_order(Session(create_engine({!r})), 17)\n"
    (reader.checkout / "orders.py").write_text(declared + caller.format(database), encoding="utf-8")
    reader.type("python orders.py")
    assert reader.ask("oncehouse outbox status")["waiting"] == 1
    reader.leave_running(relay, lambda: reader.ask("oncehouse outbox status")["waiting"] == 0)
    assert "waiting" in reader.type(status)


@pytest.mark.long
@pytest.mark.servers
@pytest.mark.timeout(1800)
def test_the_page_leads_from_nothing_to_all_that_it_shows(reader):
    use_it(reader)
    up, *_ = lines_of("Between services")
    reader.type(up)  # its servers serve the models too
    reader.look_around()
    build_facts(reader)
    sync_models(reader)
    send_messages(reader)
