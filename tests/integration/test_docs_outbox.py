"""The blocks of docs/outbox.md, run in their order on real servers: what they promise arrives in Kafka."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition
from sqlalchemy import create_engine, text

from django_site import set_up
from oncehouse.cli.app import run_command
from oncehouse.config.pipeline import Pipeline

PAGE = Path(__file__).parents[2] / "docs" / "outbox.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
URL = "postgresql+psycopg://app@localhost/app"


def blocks(kind: str) -> list[str]:
    return [body for found, body in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if found == kind]


def commands(block: str) -> list[list[str]]:
    """The lines of a shell block as arguments of oncehouse."""
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert all(line[0] == "oncehouse" for line in lines)
    return [line[1:] for line in lines]


class Page:
    """The page's own names, topics and addresses, put in the place of a reader's."""

    def __init__(self, topics: dict[str, str], url: str, servers: str) -> None:
        self.topics, self._url, self._servers = topics, url, servers
        self.names: dict[str, Any] = {"__name__": "page"}

    def fit(self, block: str) -> str:
        for name, real in self.topics.items():
            block = block.replace(f'"{name}"', f'"{real}"')
        return block.replace(URL, self._url).replace("localhost:9092", self._servers)

    def run(self, block: str) -> None:
        # As a module of its own: nothing of this file's future statements.
        exec(compile(self.fit(block), "docs/outbox.md", "exec", dont_inherit=True), self.names)


def read_all(servers: str, topic: str) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    found: list[Message] = []
    while len(found) < end:
        found += consumer.consume(end - len(found), timeout=30)
    consumer.close()
    return found


@pytest.fixture
def page(postgres_url, kafka, topic, tmp_path, monkeypatch) -> Iterator[Page]:
    monkeypatch.chdir(tmp_path)
    opened = Page({"orders": topic(), "mails": topic()}, postgres_url, kafka.bootstrap_servers)
    messaging, _ = blocks("yaml")
    (tmp_path / "messaging.yaml").write_text(opened.fit(messaging), encoding="utf-8")
    yield opened
    if "engine" in opened.names:
        opened.names["engine"].dispose()


def test_what_the_page_adds_arrives_in_order_and_is_found(page, kafka, capsys):
    _, first, several, asynchronous, *_ = blocks("python")
    init, relay, trace = blocks("bash")
    for arguments in commands(init):
        assert run_command(arguments) == 0
    for block in (first, several, asynchronous):
        page.run(block)
    for arguments in commands(relay):
        assert run_command([*arguments, "--once"]) == 0

    orders = read_all(kafka.bootstrap_servers, page.topics["orders"])
    first_order = [m for m in orders if m.key() == b"17"]
    assert [json.loads(m.value()) for m in first_order] == [
        {"order": 17, "total": 250},
        {"order": 17, "paid": True},
    ]
    assert dict(first_order[1].headers())["trace"] == b"t-1"
    assert dict(first_order[0].headers())["oncehouse-id"] == str(page.names["message_id"]).encode()
    assert [json.loads(m.value()) for m in orders if m.key() == b"18"] == [{"order": 18, "total": 99}]
    (mail,) = read_all(kafka.bootstrap_servers, page.topics["mails"])
    assert (mail.key(), mail.value()) == (None, b"\x00raw bytes")

    ((command, verb, _, *_),) = commands(trace)
    capsys.readouterr()
    traced = [command, verb, str(page.names["message_id"]), "--topic", page.topics["orders"], "--json"]
    assert run_command(traced) == 0
    (place,) = json.loads(capsys.readouterr().out)["kafka"]["places"]
    assert (place["topic"], place["offset"]) == (page.topics["orders"], first_order[0].offset())


def test_the_alembic_revision_makes_the_tables(page, postgres_url, monkeypatch):
    alembic = ModuleType("alembic")
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        alembic.op = ModuleType("op")
        alembic.op.execute = lambda statement: connection.execute(text(statement))
        monkeypatch.setitem(sys.modules, "alembic", alembic)
        page.run(blocks("python")[0])
        page.names["upgrade"]()
    with engine.begin() as connection:
        page.names["outbox"].add(connection, "orders", None, b"")
    engine.dispose()


def test_the_django_blocks_write_in_djangos_transaction(page):
    *_, settings, usage = blocks("python")
    page.run(settings)
    set_up()
    from django.conf import settings as configured
    from django.core.management import call_command

    assert set(page.names["INSTALLED_APPS"]) <= set(configured.INSTALLED_APPS)
    call_command("migrate", verbosity=0)
    page.run(usage)
    from oncehouse.messaging.django.models import OutboxRow

    row = OutboxRow.objects.latest("seq")
    assert (row.topic, bytes(row.key), json.loads(bytes(row.value))) == (
        page.topics["orders"],
        b"17",
        {"order": 17, "paid": True},
    )


def test_the_identity_of_the_page_is_one_that_a_pipeline_may_have():
    _, identity = blocks("yaml")
    pipeline = Pipeline(
        pipeline="orders",
        source={
            "kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": ["orders"]},
            "fields": {"order": "UInt64"},
        },
        tables=[{"name": "orders"}],
        clickhouse={"url": "http://127.0.0.1:9"},
        ledger={"catalog": "sqlite:///c.db", "files": "files"},
        **yaml.safe_load(identity),
    )
    assert pipeline.identity.headers == ("oncehouse-id",)
