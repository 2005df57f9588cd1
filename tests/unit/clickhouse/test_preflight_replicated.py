"""A ReplicatedMergeTree table judged by recorded answers: the local server cannot run that engine.

The answers are those of a server with two replicas, cut down to what is asked; `changes` alter one of them.
"""

import itertools

import pytest
from clickhouse_connect.driver import exceptions as driver

from oncehouse.clickhouse import server_names
from oncehouse.clickhouse.insert.dedup_window import WindowNeeds
from oncehouse.clickhouse.preflight.check import Needs, inspect
from oncehouse.clickhouse.preflight.finding import Level, objections
from oncehouse.config.pipeline import ClickHouse
from oncehouse.errors import ConfigurationError

NEEDS = Needs(
    table="sales.events",
    columns={"project": "String"},
    batch_column="_batch_id",
    id_column=None,
    window=WindowNeeds(min_interval_seconds=1.0, retry_horizon_seconds=600.0),
)
WINDOWS = "replicated_deduplication_window = 1200, replicated_deduplication_window_seconds = 604800"
HEALTHY = {
    "is_readonly": 0,
    "is_session_expired": 0,
    "absolute_delay": 0,
    "total_replicas": 2,
    "active_replicas": 2,
}


class RecordedServer:
    """Answers as a replicated server did, by what is asked for."""

    config = ClickHouse(url="http://recorded:8123", user="loader")
    database = "sales"
    address = "http://recorded:8123"

    def __init__(
        self,
        *,
        settings=WINDOWS,
        quorum="auto",
        parallel="1",
        replicas=HEALTHY,
        family="ReplicatedMergeTree",
        may_sync=True,
        servers=(("ch-1", "u1"),),
        blocks=("uuid", 7),
    ):
        self.blocks = blocks
        self.family = family
        engine = f"{family}('/clickhouse/tables/{{shard}}/events', '{{replica}}') ORDER BY project"
        self.engine_full = f"{engine} SETTINGS {settings}"
        self.quorum = quorum
        self.parallel = parallel
        self.may_sync = may_sync
        self.servers = itertools.cycle(servers)
        self.replicas = replicas

    def drop_connections(self):
        """What is asked next goes over a new one."""

    def server_version(self):
        return "25.8.4.13"

    def command(self, sql, *_):
        grant = sql.removeprefix("CHECK GRANT ")
        return int(grant.startswith(("INSERT", "SELECT")) or ("SYSTEM SYNC" in grant and self.may_sync))

    def query(self, sql, parameters=None, settings=None):
        answers = {
            "log_max_index": [self.blocks] if self.blocks else None,
            "FROM system.replicas": [tuple(self.replicas.values())] if self.replicas else None,
            "name = 'insert_quorum'": [(self.quorum,)],
            "'insert_quorum_parallel'": [
                ("insert_quorum", self.quorum),
                ("insert_quorum_parallel", self.parallel),
            ],
            "name = 'readonly'": [("0",)],
            "FROM system.settings": [],
            "FROM system.replicated_merge_tree_settings": [
                ("replicated_deduplication_window", "100"),
                ("replicated_deduplication_window_seconds", "3600"),
            ],
            "FROM system.columns": [("project", "String", ""), ("_batch_id", "UUID", "")],
            "FROM system.tables": [("uuid", self.family, self.engine_full, "", "project", [])],
            "FROM format": [("00112233-4455-6677-8899-aabbccddeeff",)],
            "FROM system.parts": [(0, 0, 0)],
            "SELECT 1": [(1,)],
        }
        if "serverUUID()" in sql and "system.replicas" in sql:
            if not self.replicas:
                raise ConfigurationError("Not enough privileges")
            return [("ch-1", "u1", 0, 0, 0, 0, self.replicas["total_replicas"])]
        if "serverUUID()" in sql:
            name, uuid = next(self.servers)
            for names in server_names._listeners.sets:
                names.add(name)
            return [(name, uuid)]
        answer = next(answer for part, answer in answers.items() if part in sql)
        if answer is None:
            raise ConfigurationError("Not enough privileges") from driver.DatabaseError(
                "Code: 497. DB::Exception: loader: Not enough privileges. (ACCESS_DENIED)"
            )
        return answer


def look(**changes):
    return objections(inspect(RecordedServer(**changes), NEEDS))


def errors(findings):
    return [finding for finding in findings if finding.level is Level.ERROR]


def test_healthy_replicas_with_a_quorum_have_no_findings():
    assert look() == ()


def test_the_reasoning_names_replicas_and_quorum():
    told = {finding.where: finding.what for finding in inspect(RecordedServer(), NEEDS)}
    assert told["sales.events: insert_quorum"] == "insert_quorum = auto with 2 of 2 replicas active"
    assert "2 of 2 replicas are active" in told["sales.events: system.replicas"]


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ("replicated_deduplication_window = 0", "replicated_deduplication_window"),
        ("replicated_deduplication_window = 100", "replicated_deduplication_window"),
        ("index_granularity = 8192", "replicated_deduplication_window"),
        (
            "replicated_deduplication_window = 1200, replicated_deduplication_window_seconds = 60",
            "replicated_deduplication_window_seconds",
        ),
    ],
)
def test_a_window_that_is_too_short_is_refused_by_its_setting(settings, setting):
    (finding,) = errors(look(settings=settings))
    assert finding.where == f"sales.events: {setting}"
    assert f"MODIFY SETTING {setting} = " in finding.advice


@pytest.mark.parametrize("state", ["is_readonly", "is_session_expired"])
def test_a_replica_that_takes_no_inserts_is_refused(state):
    (finding,) = errors(look(replicas=HEALTHY | {state: 1}))
    assert finding.where == "sales.events: system.replicas"
    assert state in finding.what


@pytest.mark.parametrize(("quorum", "active"), [("auto", 1), ("2", 1), ("3", 2)])
def test_a_quorum_that_cannot_be_met_is_refused(quorum, active):
    (finding,) = errors(look(quorum=quorum, replicas=HEALTHY | {"active_replicas": active}))
    assert f"insert_quorum = {quorum}" in finding.what


def test_a_batch_that_only_one_replica_confirms_is_a_warning():
    (finding,) = look(quorum="0")
    assert (finding.level, finding.where) == (Level.WARNING, "sales.events: insert_quorum")
    assert look(quorum="0", replicas=HEALTHY | {"total_replicas": 1, "active_replicas": 1}) == ()


def test_a_shared_table_is_judged_by_its_window_alone():
    (counted,) = look(family="SharedMergeTree", replicas={})
    assert counted.where == "sales.events: blocks of all writers"
    (finding,) = errors(
        look(family="SharedMergeTree", replicas={}, settings="replicated_deduplication_window = 0")
    )
    assert finding.where == "sales.events: replicated_deduplication_window"


def test_a_table_whose_blocks_cannot_be_counted_says_that_others_must_not_push_tokens_out():
    (shared,) = look(family="SharedMergeTree", replicas={})
    assert shared.level is Level.INFO
    (denied,) = look(blocks=None)
    assert denied.level is Level.WARNING
    assert denied.advice == "run: GRANT SELECT ON system.replicas TO `loader`"
    for finding in (shared, denied):
        assert "Other writers must not push the token" in finding.what


def test_a_replica_without_its_keeper_is_an_error_of_the_replica_alone():
    (finding,) = look(replicas=HEALTHY | {"is_session_expired": 1}, blocks=("uuid", -1))
    assert (finding.level, finding.where) == (Level.ERROR, "sales.events: system.replicas")


def reads(**changes):
    found = inspect(RecordedServer(**changes), NEEDS)
    return [finding for finding in found if finding.where == "sales.events: reads that decide"]


def test_the_reasoning_names_how_reads_that_decide_are_made():
    (finding,) = reads()
    assert finding.level is Level.OK
    assert "SYSTEM SYNC REPLICA" in finding.what
    assert "select_sequential_consistency" not in finding.what


def test_a_quorum_without_parallel_inserts_lets_reads_be_consistent_by_it():
    (finding,) = reads(parallel="0")
    assert "select_sequential_consistency = 1" in finding.what


@pytest.mark.parametrize("family", ["ReplicatedMergeTree", "SharedMergeTree"])
def test_a_user_who_may_not_wait_for_a_replica_is_a_warning(family):
    (finding,) = [one for one in reads(may_sync=False, family=family) if one.level is Level.WARNING]
    assert "GRANT SYSTEM SYNC REPLICA ON `sales`.`events` TO `loader`" in finding.advice


def test_several_replicas_behind_one_url_are_named():
    (_, finding) = reads(servers=(("ch-1", "u1"), ("ch-2", "u2")))
    assert finding.level is Level.OK
    assert "ch-1, ch-2" in finding.what


def test_servers_that_bear_one_name_are_refused():
    (finding,) = [one for one in reads(servers=(("ch", "u1"), ("ch", "u2"))) if one.level is Level.ERROR]
    assert "display_name" in finding.advice


def test_answers_without_the_servers_name_are_a_warning():
    (finding,) = [one for one in reads(servers=(("", "u1"),)) if one.level is Level.WARNING]
    assert "X-ClickHouse-Server-Display-Name" in finding.what


def test_a_table_with_one_replica_asks_for_no_further_right():
    (finding,) = reads(may_sync=False, replicas=HEALTHY | {"total_replicas": 1, "active_replicas": 1})
    assert finding.level is Level.OK
