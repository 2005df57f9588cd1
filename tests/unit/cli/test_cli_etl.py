"""What the scheduler's commands read and refuse before any server is asked."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.cli.app import run_command
from oncehouse.cli.etl.app import show_findings
from oncehouse.cli.etl.options import open_etl
from oncehouse.cli.etl.status_table import show_status
from oncehouse.cli.etl.topic_commands import parse_position
from oncehouse.clickhouse.client import Client
from oncehouse.config.pipeline import ClickHouse
from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.etl.lineage.graph import compare_lineage
from oncehouse.etl.lineage.table import as_stored
from oncehouse.etl.quality.check_log import CheckRow
from oncehouse.etl.quality.expectations import ExpectationOutcome
from oncehouse.etl.state.clickhouse_store import KeeperMapOffsets
from oncehouse.etl.state.position import START, Position
from oncehouse.etl.status import TopicStatus
from oncehouse.etl.status_text import format_position, list_notes

LINEAGE = """\
topics:
  - {topic: Orders, dst: stage.orders}
  - {topic: Paid, dst: dwh.paid, depends_on: [stage.orders]}
"""


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "lineage").mkdir()
    (tmp_path / "lineage" / "shop.yaml").write_text(LINEAGE)
    file = tmp_path / "etl.yaml"
    file.write_text("clickhouse: {url: 'http://nowhere.invalid:1'}\noffsets: {store: keepermap}\n")
    return file


@given(st.integers(1, 4_000_000_000_000), st.integers(0, 2**64 - 1))
def test_a_position_that_is_shown_can_be_sought(time_ms, id_):
    position = Position(time_ms=time_ms, id=id_)
    assert parse_position(format_position(position)) == position


def test_a_position_without_an_id_is_before_all_rows_of_its_time():
    """Whatever their ids: 0 is one, too."""
    for text in ("1970-01-01T00:00:01+00:00", "1970-01-01 02:00:01+02:00"):
        assert parse_position(text) == Position(time_ms=999, id=2**64 - 1)
        assert parse_position(text) < Position(time_ms=1000, id=0)
    assert parse_position(" Start ") == START


@pytest.mark.parametrize(
    "text", ["", "now", "2026-01-01,x", "2026-01-01,-1", "1969-01-01", f"2026-01-01,{2**64}"]
)
def test_what_is_no_position_is_refused(text):
    with pytest.raises(ConfigurationError, match=r"is no position|out of range"):
        parse_position(text)


STATUS = TopicStatus(
    topic="Orders",
    dst="dwh.orders",
    decision="waiting",
    reason="nothing new",
    last=Position(time_ms=1_777_629_600_123, id=42),
    next=Position(time_ms=1_777_629_600_123, id=42),
    rows=1234,
    state="done",
    hostid="",
    lag_seconds={"stage.orders": 0.0, "stage.customers": 7200.0},
)


def test_status_tells_failures_and_broken_expectations_under_a_table_that_fits(monkeypatch, capsys):
    failed = replace(
        STATUS,
        state="failed 2: Topic Orders stopped: expected rows at least 3, found 2 rows.",
        reason="tried again in 3 s; it has failed 2: Topic Orders stopped: …",
        next=Position(time_ms=1_777_629_700_000, id=50),
    )
    row = {"topic": "Paid", "ts": "2026-05-01 10:00:00.123", "expectation": "unique(id)"}
    warned = CheckRow(**row, outcome=ExpectationOutcome.WARNED, figure="3 of 9 rows repeat others")
    held = CheckRow(**row, outcome=ExpectationOutcome.HELD, figure="0 of 9 rows repeat others")
    show_status([STATUS, failed, replace(STATUS, topic="Paid", checks=(warned, held))])
    out = capsys.readouterr().out.splitlines()
    assert out[1].split()[:3] == ["Orders", "2026-05-01", "10:00:00.123,42"]
    assert out[2].endswith("failed 2×, tried again in 3 s")  # noqa: RUF001
    assert max(len(line) for line in out[:4]) <= 80
    assert out[5:] == [
        "Orders: stopped: expected rows at least 3, found 2 rows.",
        "Orders: its range up to 2026-05-01 10:01:40.000,50 is open",
        "Paid: warning of 2026-05-01 10:00:00: expected unique(id), found 3 of 9 rows repeat others",
    ]


def test_who_works_on_a_topic_is_told():
    assert list(list_notes(replace(STATUS, hostid="host:1"))) == ["host:1 works on it"]


def test_init_shows_every_statement_and_asks_no_server(settings, capsys):
    assert run_command(["etl", "init", "-f", str(settings)]) == 0
    out = capsys.readouterr().out
    for part in ("DATABASE", "TABLE", "VIEW"):
        assert f"CREATE {part} IF NOT EXISTS `ETL`" in out
    assert "ENGINE = KeeperMap('/ETL/Offsets')" in out
    assert out.splitlines()[-1] == "-- nothing was changed; --yes runs these statements"


def test_the_graph_needs_no_server(settings, capsys):
    assert run_command(["etl", "graph", "--file", str(settings), "--json"]) == 0
    topics = json.loads(capsys.readouterr().out)["topics"]
    assert [topic["transform"] for topic in topics] == [None, "ETL.PaidTransform"]


def test_settings_that_are_missing_are_told_with_what_to_write(tmp_path, capsys):
    assert run_command(["etl", "check", "--file", str(tmp_path / "no.yaml")]) == 2
    assert "no such file; write clickhouse.url, offsets.store and lineage into it" in capsys.readouterr().err


def test_a_wrong_lineage_stops_every_command_with_its_line(settings, capsys):
    (settings.parent / "lineage" / "shop.yaml").write_text(LINEAGE.replace("[stage.orders]", "[stage.order]"))
    for words in (["check"], ["run", "--once"], ["plan"], ["graph"], ["log"]):
        assert run_command(["etl", *words, "--file", str(settings)]) == 2
        assert (
            'shop.yaml:3: topics[1].depends_on: no topic has the dst stage.order; did you mean "stage.orders"?'
            in (capsys.readouterr().err)
        )


class WithoutKeeperMap(Client):
    def command(self, sql, parameters=None, settings=None):
        _ = parameters, settings
        if "KeeperMap" in sql:
            raise PermanentError(
                "KeeperMap is disabled because 'keeper_map_path_prefix' config is not defined"
            )


def test_a_server_without_keepermap_is_told_with_the_other_stores():
    client = WithoutKeeperMap(ClickHouse(url="http://nowhere.invalid:1"))
    with pytest.raises(ConfigurationError, match=r"keeper_map_path_prefix.*store: rocksdb"):
        KeeperMapOffsets(client).prepare()


@pytest.mark.parametrize("made", [False, True])
def test_a_check_before_init_points_at_init(settings, capsys, made):
    with open_etl(settings) as etl:
        changes = compare_lineage(as_stored(etl.lineage, etl.folder), ())
        show_findings(etl, (), changes, made=made, ok=False)
    said = "2 topics differ from the table ETL.Lineage" if made else "`oncehouse etl init --yes` makes them"
    assert said in capsys.readouterr().out
