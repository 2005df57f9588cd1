"""What the scheduler's commands read and refuse before any server is asked."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.cli.app import run_command
from oncehouse.cli.etl_status import parse_position, spell_position_time
from oncehouse.errors import ConfigurationError
from oncehouse.etl.records import START, Position

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
    assert parse_position(f"{spell_position_time(position)},{id_}") == position


def test_a_position_without_an_id_is_before_all_rows_of_its_time():
    assert parse_position("1970-01-01T00:00:01+00:00") == Position(time_ms=1000, id=0)
    assert parse_position("1970-01-01 02:00:01+02:00") == Position(time_ms=1000, id=0)
    assert parse_position(" Start ") == START


@pytest.mark.parametrize(
    "text", ["", "now", "2026-01-01,x", "2026-01-01,-1", "1969-01-01", f"2026-01-01,{2**64}"]
)
def test_what_is_no_position_is_refused(text):
    with pytest.raises(ConfigurationError, match=r"is no position|out of range"):
        parse_position(text)


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
