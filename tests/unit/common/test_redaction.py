"""A secret that was configured anywhere is in nothing that is printed or written, whatever fails."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from oncehouse.cli import app as cli
from oncehouse.cli.output import say, show_error, show_facts, show_json, show_table
from oncehouse.common import redaction
from oncehouse.common.database import open_engine
from oncehouse.common.kafka_client import plain_options
from oncehouse.common.redaction import HIDDEN, SECRET_SETTINGS, is_secret_setting, redact
from oncehouse.config.pipeline import ClickHouse, Kafka, Ledger, Spark
from oncehouse.messaging.cdc.connector_config import check_reference
from oncehouse.messaging.settings import load_messaging
from oncehouse.pipeline.spark.session import _SETTINGS

CANARY = "c4nary-in-the-cage"
ENCODED = "c4n%40ry%2Fcage"
"""As a URL spells `c4n@ry/cage`."""


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(redaction, "_known", set())


def document(folder: Path) -> dict:
    return {
        "pipeline": "shop",
        "source": {
            "kafka": {
                "bootstrap_servers": "127.0.0.1:9",
                "topics": ["events"],
                "options": {
                    "security.protocol": "SASL_SSL",
                    "sasl.username": "me",
                    "sasl.password": f"{CANARY}-kafka",
                    "ssl.key.password": f"{CANARY}-key",
                    "no.such.option": "1",
                },
            },
            "format": "avro",
            "fields": {"id": "UInt64"},
            "avro": {
                "registry": {"url": "http://127.0.0.1:9", "user": "me", "password": f"{CANARY}-registry"}
            },
        },
        "identity": {"fields": ["id"]},
        "tables": [{"name": "events"}],
        "clickhouse": {
            "url": "http://127.0.0.1:9",
            "password": "${env:ONCEHOUSE_TEST_SECRET}",
            "connect_timeout": 1,
        },
        "ledger": {
            "catalog": f"postgresql+psycopg://me:{CANARY}-catalog@127.0.0.1:9/db",
            "files": str(folder / "files"),
        },
        "spark": {"settings": {"spark.hadoop.fs.s3a.secret.key": f"{CANARY}-spark"}},
    }


MESSAGING = {
    "kafka": {
        "bootstrap_servers": "127.0.0.1:9",
        "options": {"security.protocol": "SASL_SSL", "sasl.password": f"{CANARY}-messages"},
    },
    "database": f"postgresql+psycopg://me:{CANARY}-inbox@127.0.0.1:9/db",
}
ETL = {
    "clickhouse": {"url": "http://127.0.0.1:9", "password": f"{CANARY}-etl", "connect_timeout": 1},
    "offsets": {"store": "catalog", "catalog": f"postgresql+psycopg://me:{CANARY}-offsets@127.0.0.1:9/db"},
}
COMMANDS = (
    ["check", "pipeline.yaml"],
    ["check", "pipeline.yaml", "--json"],
    ["--debug", "run", "pipeline.yaml", "--once"],
    ["--debug", "status", "pipeline.yaml"],
    ["--debug", "verify", "pipeline.yaml"],
    ["--debug", "table", "create", "pipeline.yaml", "--yes"],
    ["--debug", "schema", "plan", "pipeline.yaml"],
    ["--debug", "batches", "list", "pipeline.yaml"],
    ["--debug", "dead-letters", "list", "pipeline.yaml"],
    ["grants", "pipeline.yaml", "--json"],
    ["--debug", "etl", "status", "--settings", "etl.yaml"],
)


def test_no_command_that_fails_tells_a_secret(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("ONCEHOUSE_TEST_SECRET", f"{CANARY}-clickhouse")
    monkeypatch.chdir(tmp_path)
    for name, content in {"pipeline": document(tmp_path), "etl": ETL, "messaging": MESSAGING}.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    written = {path.name for path in tmp_path.iterdir()}
    said = ""
    for command in COMMANDS:
        code = cli.run_command(list(command))
        captured = capfd.readouterr()
        said += captured.out + captured.err
        assert code in {0, 1, 2, 75}, (command, code, captured.err)
    assert "127.0.0.1:9" in said
    assert CANARY not in said
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name not in written:
            assert CANARY.encode() not in path.read_bytes(), path


def test_a_wrong_line_beside_a_secret_does_not_tell_it(tmp_path):
    text = yaml.safe_dump(MESSAGING | {"databse": CANARY})
    (tmp_path / "messaging.yaml").write_text(text)
    with pytest.raises(cli.OncehouseError) as refusal:
        load_messaging(tmp_path / "messaging.yaml")
    assert CANARY not in str(refusal.value)


def test_the_trace_of_a_defect_tells_where_and_no_secret(tmp_path, monkeypatch, capsys):
    (tmp_path / "messaging.yaml").write_text(yaml.safe_dump(MESSAGING))

    def fail(*_arguments: object, **_options: object) -> None:
        load_messaging(tmp_path / "messaging.yaml")
        raise RuntimeError(f"driver says: password={CANARY}-messages url={MESSAGING['database']}")

    monkeypatch.setattr(cli, "app", fail)
    for arguments in (["--debug", "status"], ["status"]):
        assert cli.run_command(arguments) == cli.DEFECT_EXIT_CODE
        said = capsys.readouterr().err
        assert CANARY not in said
        assert "RuntimeError" in said
        assert HIDDEN in said


def test_a_thread_that_dies_tells_no_secret(capsys):
    ClickHouse(url="http://h:1", password=CANARY)
    thread = threading.current_thread()
    error = ValueError(f"no {CANARY} here")
    cli._report_thread_defect(threading.ExceptHookArgs((ValueError, error, None, thread)))
    said = capsys.readouterr().err
    assert CANARY not in said
    assert "ValueError" in said


SECTIONS = {
    "a password": lambda: ClickHouse(url="http://h:1", password=CANARY),
    "the password of a URL": lambda: Ledger(catalog=f"postgresql+psycopg://me:{CANARY}@h/d", files="f"),
    "credentials of a bucket": lambda: Ledger(catalog="sqlite:///c", files=f"s3://key:{CANARY}@bucket/x"),
    "a setting of Spark": lambda: Spark(settings={"spark.ssl.keyPassword": CANARY}),
    "a line of JAAS": lambda: Kafka(
        bootstrap_servers="a:1",
        topics=["t"],
        options={"security.protocol": "SASL_SSL", "sasl.jaas.config": f'X required password="{CANARY}";'},
    ),
}


@pytest.mark.parametrize("make", SECTIONS.values(), ids=SECTIONS)
def test_every_way_to_print_hides_what_a_section_holds(make, capsys):
    make()
    text = f"driver says {CANARY}!"
    say(text)
    show_error(text, hint="none")
    show_json({"error": text, text: [text]})
    show_table(["a"], [[text]], empty="")
    show_facts({"a": text})
    captured = capsys.readouterr()
    assert CANARY not in captured.out + captured.err
    assert (captured.out + captured.err).count(HIDDEN) == 7
    json.loads(next(line for line in captured.out.splitlines() if line.startswith("{")))


def test_a_password_is_found_as_its_url_spells_it_and_as_it_is():
    Ledger(catalog=f"postgresql+psycopg://me:{ENCODED}@h/d", files="f")
    assert redact(f"a {ENCODED} b c4n@ry/cage") == f"a {HIDDEN} b {HIDDEN}"


def test_a_password_among_the_parameters_of_a_url_is_one_too():
    Ledger(catalog=f"postgresql+psycopg://h/d?user=me&sslpassword={CANARY}", files="f")
    assert redact(f"a {CANARY} b") == f"a {HIDDEN} b"


def test_a_url_without_a_password_may_be_named():
    for url in ("sqlite:////var/ledger/catalog.db", "postgresql+psycopg://me@host/ledger"):
        Ledger(catalog=url, files="s3://bucket/prefix")
        assert redact(f"{url} does not answer") == f"{url} does not answer"


def test_what_no_file_has_declared_is_remembered_when_it_is_opened():
    plain_options({"sasl.password": CANARY, "linger.ms": "5000"})
    open_engine("postgresql+psycopg://me:c4nary-of-code@h/d", setting="url").dispose()
    assert redact(f"{CANARY} 5000 c4nary-of-code") == f"{HIDDEN} 5000 {HIDDEN}"


def test_a_secret_inside_another_leaves_no_rest():
    ClickHouse(url="http://h:1", password="abc-12345")
    ClickHouse(url="http://h:1", password="abc-12345-longer")
    assert redact("x abc-12345-longer abc-12345 y") == f"x {HIDDEN} {HIDDEN} y"


def test_a_common_word_as_a_password_does_not_blot_out_messages():
    ClickHouse(url="http://h:1", password="clickhouse")
    assert redact("clickhouse.url is wrong") == "clickhouse.url is wrong"


@pytest.mark.parametrize(
    "name",
    [
        "kafka.sasl.jaas.config",
        "kafka.ssl.key.password",
        "kafka.ssl.keystore.key",
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.s3a.access.key",
        "spark.ssl.keyPassword",
        "spark.authenticate.secret",
    ],
)
def test_spark_is_told_to_hide_what_we_hide(name):
    assert is_secret_setting(name)
    assert re.search(_SETTINGS["spark.redaction.regex"], name)
    assert _SETTINGS["spark.sql.redaction.options.regex"] == SECRET_SETTINGS


def options_of(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from parameter.opts
    for inner in getattr(command, "commands", {}).values():
        yield from options_of(inner)


def test_no_command_takes_a_secret_as_an_argument_where_every_user_of_the_machine_could_read_it():
    known = list(options_of(typer.main.get_command(cli.app)))
    assert "--role" in known
    # That of `cdc init` and `sync pipeline` is a reference for Kafka Connect, and refused when it is anything else.
    told = [option for option in known if is_secret_setting(option) and not option.endswith("-file")]
    assert told == ["--password", "--password"]
    with pytest.raises(cli.OncehouseError, match="reference"):
        check_reference(CANARY)
