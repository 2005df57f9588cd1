"""Expectations and templates of the user's own on the real ClickHouse: what must stop is never seen, and a template
is as safe as the built-in ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from oncehouse.clickhouse.client import Client, connect
from oncehouse.clickhouse.preflight.check import Level
from oncehouse.config.pipeline import ClickHouse
from oncehouse.etl.lineage.expectation_file import ExpectationSection, make_expectation
from oncehouse.etl.lineage.topic import Expectation, Template, Topic
from oncehouse.etl.preflight.lineage_check import inspect_lineage
from oncehouse.etl.quality.check_log import check_log_ddl, read_checks, read_latest_checks
from oncehouse.etl.quality.expectations import ExpectationOutcome, evaluate, measure_sql
from oncehouse.etl.scheduler.scheduler import Scheduler, StepFailed
from oncehouse.etl.scheduler.step_runner import StepDone
from oncehouse.etl.state import backfill_transitions as lanes
from oncehouse.etl.state import transitions
from oncehouse.etl.state import transitions as offsets
from oncehouse.etl.state.clickhouse_store import RocksDbOffsets
from oncehouse.etl.state.position import MAX_ID, START, Position
from oncehouse.etl.steps.operations import Execute, Insert

IN_RANGE = """(pos, id) > ({last_time:DateTime64(3)}, {last_id:UInt64})
    AND (pos, id) <= ({next_time:DateTime64(3)}, {next_id:UInt64})"""

WHOLE_DAYS = """pos >= toStartOfDay({last_time:DateTime64(3)})
    AND (pos, id) <= ({next_time:DateTime64(3)}, {next_id:UInt64})"""


def expect(**keys: Any) -> Expectation:
    return make_expectation(ExpectationSection(**keys))


@dataclass(frozen=True, kw_only=True)
class Place:
    client: Client
    database: str
    store: RocksDbOffsets
    folder: Path

    def topic(self, **keys: Any) -> Topic:
        names = {"topic": "Fact", "dst": f"{self.database}.fact", "depends_on": (f"{self.database}.stage",)}
        return Topic(**{**names, "transform": "rows.sql", **keys})

    def scheduler(self, topic: Topic) -> Scheduler:
        return Scheduler(self.client, self.store, (topic,), folder=self.folder, database=self.database)

    def run(self, topic: Topic) -> list[StepDone | StepFailed]:
        with self.scheduler(topic) as scheduler:
            rounds = scheduler.run_until_idle(most_rounds=20)
        return [one for done in rounds for one in done.outcomes if isinstance(one, StepDone | StepFailed)]

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        return self.client.query(text.replace("{db}", self.database))

    def command(self, text: str) -> None:
        self.client.command(text.replace("{db}", self.database), settings={"mutations_sync": 1})

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text.replace("{db}", self.database))
        return name

    def add(self, first: int, count: int, *, country: str = "'de'") -> None:
        self.command(
            f"INSERT INTO {{db}}.stage SELECT toDateTime64('2026-01-01 00:00:00', 3, 'UTC') + number, number, "
            f"{country} FROM numbers({first}, {count})"
        )

    def facts(self) -> tuple[int, int]:
        ((rows, ids),) = self.sql("SELECT count(), uniqExact(id) FROM {db}.fact")
        return rows, ids

    def outcomes(self, *, only_broken: bool = False) -> list[ExpectationOutcome]:
        rows = read_checks(self.client, self.database, topic="Fact", limit=9, only_broken=only_broken)
        return [row.outcome for row in rows]

    def forgive(self) -> None:
        """No back-off: the topic may run again at once."""
        self.store.change("Fact", lambda row, _now: replace(row, state=""))


@pytest.fixture
def place(clickhouse, database, tmp_path) -> Place:
    client = connect(ClickHouse(url=clickhouse.url))
    store = RocksDbOffsets(client, f"{database}.OffsetsLocal")
    store.prepare()
    place = Place(client=client, database=database, store=store, folder=tmp_path)
    columns = "(pos DateTime64(3, 'UTC'), id UInt64, country Nullable(String))"
    place.command(f"CREATE TABLE {{db}}.stage {columns} ENGINE = MergeTree ORDER BY (pos, id)")
    place.command(
        f"CREATE TABLE {{db}}.fact {columns} ENGINE = MergeTree PARTITION BY toDate(pos) ORDER BY (pos, id) "
        "SETTINGS non_replicated_deduplication_window = 1000"
    )
    for statement in check_log_ddl(database):
        client.command(statement)
    place.write("rows.sql", f"SELECT * FROM {{db}}.stage WHERE {IN_RANGE}")
    return place


NO_NULLS = expect(check="null_share", column="country", at_most="10%")


@pytest.mark.parametrize("reads_offsets", [False, True])
def test_rows_that_are_not_what_was_expected_are_never_seen(place, reads_offsets):
    topic = place.topic(expect=(NO_NULLS,), maxstep_rows=10)
    if reads_offsets:
        of = "(SELECT (last, next) FROM {db}.OffsetsLocal WHERE topic = 'Fact')"
        place.command(
            f"CREATE VIEW {{db}}.FactView AS WITH {of} AS span SELECT * FROM {{db}}.stage "
            "WHERE (pos, id) > span.1 AND (pos, id) <= span.2"
        )
        topic = replace(topic, transform=f"{place.database}.FactView")
    place.add(1, 10)
    place.add(11, 10, country="if(number < 13, NULL, 'fr')")
    done, failed = place.run(topic)
    assert (done.rows, done.warnings) == (10, ())
    assert "null_share(country) at most 10%, found 2 of 10 rows (20%)" in failed.why
    assert "etl seek Fact 2026-01-01T00:00:20.000,20`" in failed.why
    assert place.facts() == (10, 10)
    row = place.store.read_all().offsets["Fact"]
    assert not row.is_open, "nothing was inserted, so the range is planned anew"
    assert row.state.startswith("failed 1: Topic Fact stopped: expected null_share")
    place.command("ALTER TABLE {db}.stage UPDATE country = 'fr' WHERE country IS NULL")
    place.forgive()
    assert [one.rows for one in place.run(topic)] == [10]
    assert place.facts() == (20, 20)
    outcomes = [
        row.outcome
        for row in read_checks(place.client, place.database, topic="Fact", limit=9, only_broken=False)
    ]
    assert outcomes == [ExpectationOutcome.HELD, ExpectationOutcome.STOPPED, ExpectationOutcome.HELD]


def test_a_check_that_comes_after_the_insert_would_be_caught(place, monkeypatch):
    """The seeded defect: the rows are looked at once they are in the table."""
    real = Scheduler

    def late(*arguments, **keys):
        scheduler = real(*arguments, **keys)
        plan = scheduler._runner.plan_decision

        def reorder(decision, found=None):
            step = plan(decision, found)
            write_next, look, fix, insert, *rest = step.operations
            return replace(step, operations=(write_next, fix, insert, look, *rest))

        scheduler._runner.plan_decision = reorder
        return scheduler

    monkeypatch.setitem(globals(), "Scheduler", late)
    place.add(1, 10, country="NULL")
    assert isinstance(place.run(place.topic(expect=(NO_NULLS,)))[0], StepFailed)
    assert place.facts() == (10, 10)


def test_a_warning_lets_the_rows_in_and_is_told(place):
    warning = replace(NO_NULLS, otherwise="warn")
    complete = expect(check="rows_per_source_row", at_least=1, at_most=1)
    place.add(1, 4, country="NULL")
    (done,) = place.run(place.topic(expect=(complete, warning)))
    assert done.warnings == ("expected null_share(country) at most 10%, found 4 of 4 rows (100%)",)
    assert place.facts() == (4, 4)
    latest = read_latest_checks(place.client, place.database)["Fact"]
    assert [(row.outcome, row.figure) for row in latest] == [
        (ExpectationOutcome.WARNED, "4 of 4 rows (100%)"),
        (ExpectationOutcome.HELD, "4 rows of 4 (1)"),
    ]
    assert [
        row.outcome
        for row in read_checks(place.client, place.database, topic=None, limit=9, only_broken=True)
    ] == [ExpectationOutcome.WARNED]


def test_a_range_whose_insert_may_have_begun_is_not_judged_again(place):
    place.add(1, 5)
    topic = place.topic(expect=(expect(check="rows", at_least=5),))
    with place.scheduler(topic) as scheduler:
        (step,) = scheduler.plan()
        transitions.begin(place.store, scheduler.worker, step.seen, next_=step.span.next)
    transitions.unlock(place.store, "Fact")  # as after a crash
    stricter = replace(topic, expect=(expect(check="rows", at_least=6),))
    assert isinstance(place.run(stricter)[0], StepDone)
    assert place.facts() == (5, 5)


def test_results_that_have_no_table_are_told_with_what_makes_it(place):
    place.command("DROP TABLE {db}.Checks SYNC")
    place.add(1, 5)
    (failed,) = place.run(place.topic(expect=(NO_NULLS,)))
    assert "`oncehouse etl init --yes` makes it" in failed.why
    assert place.facts() == (0, 0)


@pytest.mark.parametrize("template", [Template.RELOAD, Template.RANGE])
def test_a_rebuilt_table_that_is_not_what_was_expected_is_not_put_in_place(place, template):
    place.write("all.sql", "SELECT * FROM {db}.stage")
    keys = {"template": template, "transform": "all.sql", "range_column": "pos", "gate_share": 0.0}
    topic = place.topic(**keys, expect=(expect(check="unique", column=["id"]), NO_NULLS))
    place.add(1, 5)
    assert isinstance(place.run(topic)[0], StepDone)
    place.add(6, 5, country="NULL")
    (failed,) = place.run(topic)
    assert f"5 of 10 rows (50%). What was built stands in {place.database}.fact_aside_" in failed.why
    assert place.facts() == (5, 5)
    place.forgive()
    assert isinstance(place.run(replace(topic, expect=(replace(NO_NULLS, otherwise="warn"),)))[0], StepDone)
    assert place.facts() == (10, 10)


def test_a_back_fill_of_a_range_builds_what_comes_after_a_seek_into_the_future(place):
    place.write("days.sql", f"SELECT * FROM {{db}}.stage WHERE {WHOLE_DAYS}")
    topic = place.topic(template=Template.RANGE, transform="days.sql", range_column="pos")
    place.add(1, 5)
    offsets.seek(place.store, "Fact", Position(time_ms=1_900_000_000_000, id=MAX_ID))
    lanes.order_backfill(
        place.store,
        topic,
        after=START,
        upto=None,
        every_seconds=0,
        maxstep_rows=None,
        is_emptied=False,
        lease_seconds=60,
    )
    place.run(topic)
    assert place.facts() == (5, 5)
    place.add(6, 5)
    place.run(topic)
    assert place.facts() == (10, 10)


@pytest.mark.parametrize("template", [Template.RELOAD, Template.RANGE])
@pytest.mark.parametrize(("gate", "kept"), [(0.9, 10), (0.8, 8), (0.0, 8)])
def test_the_gate_on_row_counts_is_the_topics_own(place, template, gate, kept):
    place.write("some.sql", "SELECT * FROM {db}.stage WHERE id <= 8")
    place.command("INSERT INTO {db}.fact SELECT '2026-01-01 00:00:00', number, 'x' FROM numbers(10)")
    place.add(1, 10)
    keys = {"template": template, "transform": "some.sql", "range_column": "pos"}
    (outcome,) = place.run(place.topic(**keys, gate_share=gate))
    assert isinstance(outcome, StepFailed if kept == 10 else StepDone)
    assert place.facts()[0] == kept


VALUES = """SELECT toDecimal64(number, 2) AS d, toFloat64(number) AS f, toUInt64(18446744073709551610 + number) AS u,
    toDate('2026-01-01') + number AS day, toDateTime('2026-01-01 00:00:00', 'UTC') + number AS t,
    'w' || toString(number) AS `wo``rd`, if(number = 0, NULL, number) AS n, if(number = 3, nan, 1.0) AS nan
    FROM numbers(5)"""


@pytest.mark.parametrize(
    ("column", "least", "most", "outside"),
    [
        ("d", 1, 3, 2),
        ("d", 0.5, None, 1),
        ("f", -1, 3.5, 1),
        ("u", 18446744073709551612, None, 2),
        ("u", -1, None, 0),
        ("day", "2026-01-02", "2026-01-04", 2),
        ("t", "2026-01-01 00:00:01", None, 1),
        ("wo`rd", "w1", "w2", 3),
        ("n", 2, None, 1),
        ("nan", 0, 9, 1),
    ],
)
def test_values_of_every_type_are_compared_exactly(place, column, least, most, outside):
    expectation = expect(check="value", column=column, at_least=least, at_most=most)
    types = {row[0]: row[1] for row in place.client.query(f"DESCRIBE TABLE ({VALUES})")}
    sql, bound = measure_sql((expectation,), types, rows_from=f"({VALUES})", source_rows="0")
    (verdict,) = evaluate((expectation,), place.client.query(sql, bound)[0])
    assert verdict.figure.startswith(f"{outside} of 5 rows outside")


def test_uniqueness_counts_nulls_and_columns_together(place):
    rows = "(SELECT number % 2 AS a, if(number < 2, NULL, 1) AS b FROM numbers(4))"
    for columns, repeated in ((["a"], 2), (["b"], 2), (["a", "b"], 0)):
        expectation = expect(check="unique", column=columns)
        sql, bound = measure_sql((expectation,), {}, rows_from=rows, source_rows="0")
        (verdict,) = evaluate((expectation,), place.client.query(sql, bound)[0])
        assert verdict.figure == f"{repeated} of 4 rows repeat others"


OWN = """{# Countries that were seen, written down first; then the rows, with the country spelt as it is wanted. #}
CREATE TABLE IF NOT EXISTS {{ (dst ~ '_seen') | table }} (country String) ENGINE = MergeTree ORDER BY country;
TRUNCATE TABLE {{ (dst ~ '_seen') | table }};
INSERT INTO {{ (dst ~ '_seen') | table }}
SELECT DISTINCT assumeNotNull(country) FROM {{ source | table }} AS s WHERE {{ in_range('s') }};
SELECT pos, id, {{ parameters.prefix }} || s.country AS {{ parameters.column | identifier }}
FROM {{ source | table }} AS s WHERE {{ in_range('s') }}
    AND s.country IN (SELECT country FROM {{ (dst ~ '_seen') | table }});
TRUNCATE TABLE {{ (dst ~ '_seen') | table }}
"""
PREFIX = "it's \\ a\n{tab}\t"


def own_topic(place: Place, **keys: Any) -> Topic:
    place.write("own.sql.j2", OWN)
    place.command(
        "CREATE TABLE IF NOT EXISTS {db}.fact_seen (country String) ENGINE = MergeTree ORDER BY country"
    )
    parameters = (("prefix", PREFIX), ("column", "country"))
    return place.topic(transform=None, template_file="own.sql.j2", parameters=parameters, **keys)


def test_a_template_of_ones_own_runs_as_it_was_planned(place):
    topic = own_topic(
        place, maxstep_rows=10, expect=(expect(check="rows_per_source_row", at_least=1, at_most=1),)
    )
    place.add(1, 25)
    with place.scheduler(topic) as scheduler:
        (planned,) = scheduler.plan()
        sent: list[str] = []
        real = place.client.command
        place.client.command = lambda sql, *rest: (sent.append(sql), real(sql, *rest))[1]
        try:
            scheduler.run_round()
        finally:
            del place.client.command
    wanted = [one.sql for one in planned.operations if isinstance(one, Execute | Insert)]
    assert len(wanted) == 5
    assert [sql for sql in sent if sql in wanted] == wanted
    place.run(topic)
    assert place.facts() == (25, 25)
    assert place.sql("SELECT DISTINCT country FROM {db}.fact") == [(f"{PREFIX}de",)]
    assert place.sql("SELECT count() FROM {db}.fact_seen") == [(0,)]


BEFORE_EACH = """TRUNCATE TABLE {db}.bound;
INSERT INTO {db}.bound SELECT max(id) FROM {{ source | table }} WHERE {{ in_range() }};
SELECT * FROM {{ source | table }} WHERE {{ in_range() }} AND (SELECT id FROM {db}.bound) = {{ next_id }}
"""


def test_what_stands_before_the_rows_runs_again_for_a_range_that_was_halved(place):
    place.write("own.sql.j2", BEFORE_EACH)
    place.command("CREATE TABLE {db}.bound (id UInt64) ENGINE = MergeTree ORDER BY id")
    place.add(1, 40)
    with place.scheduler(place.topic(transform=None, template_file="own.sql.j2")) as scheduler:
        scheduler._runner._sizing.block_rows = 15
        rounds = scheduler.run_until_idle()
    steps = [one.rows for done in rounds for one in done.outcomes if isinstance(one, StepDone)]
    assert (max(steps), sum(steps)) == (15, 40)
    assert place.facts() == (40, 40)


KILLED = """
import sys
from pathlib import Path
from oncehouse.clickhouse.client import connect
from oncehouse.config.pipeline import ClickHouse
from oncehouse.etl.state.clickhouse_store import RocksDbOffsets
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.scheduler.scheduler import Scheduler
url, database, folder, prefix = sys.argv[1:]
client = connect(ClickHouse(url=url))
topic = Topic(topic="Fact", dst=f"{database}.fact", depends_on=(f"{database}.stage",), template_file="own.sql.j2",
    parameters=(("prefix", prefix), ("column", "country")), maxstep_rows=10)
with Scheduler(client, RocksDbOffsets(client, f"{database}.OffsetsLocal"), (topic,), folder=Path(folder)) as scheduler:
    scheduler.run_until_idle()
"""


@pytest.mark.parametrize("point", ["etl-after-next", "etl-after-insert"])
def test_a_template_of_ones_own_is_exact_after_a_kill(place, point):
    topic = own_topic(place, maxstep_rows=10)
    place.add(1, 25)
    words = (place.client.config.url, place.database, str(place.folder), PREFIX)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *words],
        env={**os.environ, "ONCEHOUSE_CRASH_AT": f"{point}:2"},
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    transitions.unlock(place.store, "Fact")
    place.run(topic)
    assert place.facts() == (25, 25)


def test_a_template_may_follow_a_reload_and_read_from_the_topics_transform(place):
    place.write(
        "latest.sql.j2",
        "SELECT * FROM {{ transform }} ORDER BY id DESC LIMIT 1 BY {{ parameters.key | identifier }}",
    )
    place.write("all.sql", "SELECT * FROM {db}.stage")
    place.add(1, 6, country="if(number % 2, 'de', 'fr')")
    topic = place.topic(
        template=Template.RELOAD,
        transform="all.sql",
        template_file="latest.sql.j2",
        parameters=(("key", "country"),),
    )
    assert isinstance(place.run(topic)[0], StepDone)
    assert place.sql("SELECT id FROM {db}.fact ORDER BY id") == [(5,), (6,)]


def test_check_finds_what_the_server_does_not_understand(place):
    def findings(**keys: Any) -> list[str]:
        found = inspect_lineage(place.client, (place.topic(**keys),), place.database)
        return [one.what for one in found if one.level is Level.ERROR]

    path = str(place.folder / "wrong.sql.j2")
    place.write("wrong.sql.j2", "SELECT pos, id, cuntry FROM {{ source | table }} WHERE {{ in_range() }}")
    (told,) = findings(transform=None, template_file=path)
    assert "cuntry" in told
    place.write("wrong.sql.j2", "SELECT pos, id, 1 AS one FROM {{ source | table }} WHERE {{ in_range() }}")
    assert findings(transform=None, template_file=path) == [
        f"wrong.sql.j2 yields the column one, which {place.database}.fact does not have"
    ]
    place.write("wrong.sql.j2", "SELECT {first:UInt8}")
    (told,) = findings(transform=None, template_file=path)
    assert "asks for first; a step has last_time" in told
    rows = str(place.folder / "rows.sql")
    (told,) = findings(transform=rows, expect=(expect(check="unique", column="uid"),))
    assert (
        "unique(uid) looks at a column that its transform does not yield; it yields pos, id, country" in told
    )
    assert findings(transform=rows, expect=(NO_NULLS,)) == []
