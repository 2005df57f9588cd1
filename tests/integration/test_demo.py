"""The demo on servers of its own: its table, its exit code, and that it notices what it promises to notice."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import demo
from demo_events import (
    FIELDS,
    broken_messages,
    make_columns,
    make_messages,
    plan_traffic,
)
from demo_results import Comparison, DemoResult, compare
from oncehouse.clickhouse.client import connect
from oncehouse.column_types.parser import parse_type
from oncehouse.config.pipeline import ClickHouse
from oncehouse.pipeline.formats.json.decoder import JsonDecoder

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.servers


def arrow_stream(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


@pytest.fixture
def client(clickhouse, database):
    return connect(ClickHouse(url=f"{clickhouse.url}/{database}"))


@pytest.fixture
def filled(client):
    """The traffic, and a client of a database whose table holds exactly its events."""
    traffic = plan_traffic(5000)
    columns = ", ".join(f"{name} {type_}" for name, type_ in FIELDS.items())
    client.command(f"CREATE TABLE events ({columns}) ENGINE = MergeTree ORDER BY product_id")
    client.insert_arrow("events", tuple(FIELDS), arrow_stream(make_columns(np.arange(traffic.unique))), {})
    return traffic, client


def numbers_of(table: str) -> dict[str, str]:
    return dict(re.match(r"(.+) (\S+)$", line).groups() for line in table.splitlines())


@pytest.mark.timeout(900)
def test_small_demo_ends_well_and_leaves_nothing_behind(tmp_path):
    words = [sys.executable, str(ROOT / "examples/demo/demo.py"), "--events", "30000"]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env=environment_with_temporary(tmp_path)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout.split(" done\n")[1]
    found = numbers_of(table)
    assert list(found) == [
        "produced",
        "unique",
        "duplicates",
        "dead letters",
        "rows in ClickHouse",
        "events/s",
        "inserts",
        "rows an insert",
        "kills",
        "answers swallowed",
        "verify",
        "rows not produced",
        "lost",
        "doubled",
    ]
    traffic = plan_traffic(30000, broken=37)
    assert found | {"events/s": "", "inserts": "", "rows an insert": ""} == {
        "produced": "30037",
        "unique": str(traffic.unique),
        "duplicates": str(30000 - traffic.unique),
        "dead letters": "37",
        "rows in ClickHouse": str(traffic.unique),
        "events/s": "",
        "inserts": "",
        "rows an insert": "",
        "kills": "1",
        "answers swallowed": "1",
        "verify": "ok",
        "rows not produced": "0",
        "lost": "0",
        "doubled": "0",
    }
    # The insert whose answer was lost and the one that followed it.
    assert int(found["inserts"]) >= 2
    assert int(found["events/s"]) > 0
    assert list(tmp_path.iterdir()) == []


def environment_with_temporary(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder)}


@pytest.mark.parametrize(
    ("spoilt", "code"),
    [
        ({}, 0),
        ({"lost": 2}, 1),
        ({"doubled": 1}, 1),
        ({"foreign": 1}, 1),
        ({"verified": False}, 1),
        ({"kills": 0}, 1),
        ({"answers_swallowed": 0}, 1),
        ({"dead_letters": 36}, 1),
    ],
)
def test_the_demo_ends_well_only_when_all_went_as_promised(monkeypatch, capsys, spoilt, code):
    table = {name: spoilt[name] for name in ("lost", "doubled", "foreign") if name in spoilt}
    result = replace(
        DemoResult(
            produced=1037,
            unique=900,
            duplicates=100,
            dead_letters=37,
            expected=(900, 100, 37),
            found=replace(Comparison(rows=900, lost=0, doubled=0, foreign=0), **table),
            events_per_second=10.0,
            inserts=2,
            kills=1,
            answers_swallowed=1,
            verified=True,
        ),
        **{name: value for name, value in spoilt.items() if name not in table},
    )
    monkeypatch.setattr(demo, "run_demo", lambda **_: result)
    assert demo.main(["--events", "1000"]) == code
    assert capsys.readouterr().out.endswith("\n".join(result.lines()) + "\n")


def test_comparison_of_an_exact_table_finds_nothing(filled):
    traffic, client = filled
    found = compare(client, "events", traffic)
    assert (found.rows, found.lost, found.doubled, found.foreign) == (traffic.unique, 0, 0, 0)


def test_comparison_finds_a_doubled_row(filled):
    traffic, client = filled
    client.command("INSERT INTO events SELECT * FROM events WHERE product_id = 7")
    found = compare(client, "events", traffic)
    assert (found.lost, found.doubled, found.foreign) == (0, 1, 0)


def test_comparison_finds_a_lost_row_even_where_another_one_is_doubled(filled):
    traffic, client = filled
    client.command("INSERT INTO events SELECT * FROM events WHERE product_id = 7")
    client.command("ALTER TABLE events DELETE WHERE product_id = 11 SETTINGS mutations_sync = 2")
    found = compare(client, "events", traffic)
    assert (found.rows, found.lost, found.doubled) == (traffic.unique, 1, 1)


def test_comparison_finds_a_row_whose_content_changed(filled):
    traffic, client = filled
    client.command("ALTER TABLE events UPDATE price = 0.01 WHERE product_id = 7 SETTINGS mutations_sync = 2")
    found = compare(client, "events", traffic)
    assert (found.lost, found.doubled, found.foreign) == (1, 0, 1)


def test_traffic_has_a_tenth_of_duplicates_near_far_and_sent_again():
    traffic = plan_traffic(100_000, broken=37)
    assert traffic.produced == 100_037
    assert 0.09 < traffic.duplicates / 100_000 < 0.11
    serials = traffic.first
    newest = np.maximum.accumulate(serials)
    again = np.flatnonzero(serials[1:] <= newest[:-1]) + 1
    distance = newest[again - 1] - serials[again]
    assert (distance < 200).sum() > 2000
    assert (distance > 10_000).sum() > 2000
    assert len(traffic.resent) == 2000
    assert np.isin(traffic.resent, serials).all()
    assert np.array_equal(np.unique(serials), np.arange(traffic.unique))


def test_messages_hold_what_the_columns_hold_in_about_two_hundred_bytes():
    serials = np.array([0, 5, 5, 123_456_789])
    messages = make_messages(serials)
    assert messages[1] == messages[2]
    rows = make_columns(serials).to_pylist()
    for message, row in zip(messages, rows, strict=True):
        written = json.loads(message)
        assert list(written) == list(FIELDS)
        assert written["product_id"] == row["product_id"]
        assert written["price"] == str(row["price"])
        assert written["created_at"] == row["created_at"].strftime("%Y-%m-%dT%H:%M:%S.") + (
            f"{row['created_at'].microsecond // 1000:03d}Z"
        )
        assert 150 < len(message) < 250


def test_every_broken_message_is_refused():
    types = {name: parse_type(text) for name, text in FIELDS.items()}
    messages = broken_messages(37)
    decoded = JsonDecoder(fields=types, max_message_bytes=1 << 20, max_depth=64).decode(
        pa.array(messages, pa.binary())
    )
    assert len(messages) == len(decoded.rejected) == 37
