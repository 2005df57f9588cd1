"""`oncehouse check` on real servers: each unsafe set-up is refused by a message that names its setting."""

import json

import pytest

from clickhouse_users import PASSWORD
from oncehouse.cli.app import run_command
from oncehouse.config.file_loader import example_text
from oncehouse.pipeline.checks import clock_skew

HOUR = 3600


@pytest.fixture
def make_file(tmp_path, kafka, clickhouse, database, topic):
    """A pipeline file whose table exists, and a topic with the given settings."""

    def make(*, user="loader", **settings):
        path = tmp_path / "pipeline.yaml"
        path.write_text(
            example_text()
            .replace("localhost:9092", kafka.bootstrap_servers)
            .replace("topics: [events]", f"topics: [{topic(**settings)}]")
            .replace("http://localhost:8123", f"http://127.0.0.1:{clickhouse.place.ports['http']}/{database}")
        )
        assert run_command(["table", "create", str(path), "--yes"]) == 0
        text = path.read_text().replace("user: default", f"user: {user}")
        path.write_text(text.replace("# password: ${env:CLICKHOUSE_PASSWORD}", f"password: {PASSWORD}"))
        return path

    return make


def check_all(file, capsys, *options):
    capsys.readouterr()
    code = run_command(["check", str(file), "--json", *options])
    return code, json.loads(capsys.readouterr().out)["findings"]


def check(file, capsys, *options):
    """Without the warning that every topic of a single broker gets."""
    code, findings = check_all(file, capsys, *options)
    return code, [finding for finding in findings if not finding["where"].endswith(": replication factor")]


def test_a_topic_on_one_broker_alone_is_warned_of(make_file, capsys):
    code, findings = check_all(make_file(), capsys)
    (finding,) = [one for one in findings if one["where"].endswith(": replication factor")]
    assert (code, finding["level"]) == (0, "warning")


def test_a_topic_that_allows_unclean_elections_is_warned_of(make_file, capsys):
    code, findings = check(make_file(**{"unclean.leader.election.enable": "true"}), capsys)
    (finding,) = [one for one in findings if one["where"].endswith(": unclean.leader.election.enable")]
    assert (code, finding["level"]) == (0, "warning")
    assert "unclean.leader.election.enable=false" in finding["advice"]


def refusals(file, capsys):
    code, findings = check(file, capsys)
    assert code == 2
    return [finding["where"] for finding in findings if finding["level"] == "error"]


def test_a_sound_set_up_passes_and_explains_itself_in_80_columns(make_file, capsys):
    file = make_file(**{"retention.ms": str(7 * 24 * HOUR * 1000)})
    assert check(file, capsys) == (0, [])
    capsys.readouterr()
    assert run_command(["check", str(file), "--explain"]) == 0
    told = capsys.readouterr().out
    for figure in (
        "records are kept for 7d, source.kafka.longest_outage is 3d",
        "non_replicated_deduplication_window",
        "a retry needs 1200 (600 s until a retry",
        "max_clock_difference is 60 s",
    ):
        assert figure in " ".join(told.split())
    reasoning, _, addresses = told.partition("\npart ")
    assert addresses
    # A path is not broken, however long it is.
    too_long = [line for line in reasoning.splitlines() if len(line) > 80 and len(line.split()) > 1]
    assert too_long == []


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"retention.ms": str(HOUR * 1000)}, "retention.ms"),
        ({"cleanup.policy": "compact"}, "cleanup.policy"),
        ({"cleanup.policy": "compact,delete", "retention.ms": "-1"}, "cleanup.policy"),
    ],
)
def test_a_topic_that_does_not_outlive_the_longest_outage_is_refused(settings, setting, make_file, capsys):
    file = make_file(**settings)
    (where,) = refusals(file, capsys)
    assert where.endswith(f": {setting}")
    file.write_text(file.read_text().replace("  kafka:\n", "  kafka:\n    longest_outage: 0s\n"))
    assert check(file, capsys)[0] == 0


@pytest.mark.parametrize(
    ("user", "setting"),
    [
        ("forced_async", "setting async_insert"),
        ("doubled_views", "setting deduplicate_blocks_in_dependent_materialized_views"),
        ("without_insert", "events"),
    ],
)
def test_a_user_or_profile_that_would_break_the_promise_is_refused(user, setting, make_file, capsys):
    assert setting in refusals(make_file(user=user), capsys)


def test_a_user_with_too_many_rights_is_refused_where_the_file_asks_for_that(make_file, capsys):
    file = make_file(user="dropper")
    code, (finding,) = check(file, capsys)
    assert (code, finding["level"]) == (0, "warning")
    file.write_text(file.read_text().replace("  user: dropper", "  excess_rights: refuse\n  user: dropper"))
    assert refusals(file, capsys) == ["events: clickhouse.user"]


def add_view(clickhouse_client, database):
    clickhouse_client.command(
        f"CREATE MATERIALIZED VIEW {database}.by_project ENGINE = MergeTree ORDER BY project "
        "SETTINGS non_replicated_deduplication_window = 1200 "
        f"AS SELECT project, product_id FROM {database}.events"
    )


def test_a_user_who_may_not_see_other_writers_is_told_what_they_must_not_do(make_file, capsys):
    (finding,) = check(make_file(user="without_proofs"), capsys)[1]
    assert finding["level"] == "warning"
    assert "Other writers must not push the token of a batch out" in finding["what"]
    assert finding["advice"] == "run: GRANT SELECT ON system.parts TO `without_proofs`"


@pytest.mark.parametrize(
    ("user", "reason", "advice"),
    [
        ("without_proofs", "may not read it", "run: GRANT SELECT ON system.query_log TO `without_proofs`"),
        (
            "unlogged",
            "log_queries = 0",
            "let the user's profile keep ClickHouse's defaults of these settings",
        ),
    ],
)
def test_a_query_log_that_proves_nothing_is_warned_of_where_views_depend_on_it(
    user, reason, advice, make_file, capsys, clickhouse_client, database
):
    file = make_file(user=user)

    def warnings():
        code, findings = check(file, capsys)
        assert code == 0
        return [finding for finding in findings if finding["where"].endswith(": system.query_log")]

    assert warnings() == []
    add_view(clickhouse_client, database)
    (finding,) = warnings()
    assert (finding["level"], finding["advice"]) == ("warning", advice)
    assert reason in finding["what"]
    assert "`views unproven`" in finding["what"]
    assert "parked" not in finding["what"]


def test_a_query_log_that_can_be_read_proves_what_views_need(make_file, capsys, clickhouse_client, database):
    file = make_file()
    add_view(clickhouse_client, database)
    assert check(file, capsys) == (0, [])
    told = {finding["where"]: finding["level"] for finding in check(file, capsys, "--explain")[1]}
    assert told[f"{database}.events: system.query_log"] == "ok"


def test_a_window_of_no_blocks_is_refused(make_file, capsys, clickhouse_client, database):
    file = make_file()
    clickhouse_client.command(
        f"ALTER TABLE {database}.events MODIFY SETTING non_replicated_deduplication_window = 0"
    )
    assert refusals(file, capsys) == ["events: non_replicated_deduplication_window"]


def make_events(number):
    return [
        json.dumps(
            {
                "project": "shop",
                "event_type": "view",
                "product_id": n,
                "price": "1.50",
                "created_at": f"2026-{n % 12 + 1:02d}-01 00:00:00.000",
                "tags": [],
                "attributes": {},
            }
        ).encode()
        for n in range(number)
    ]


@pytest.mark.parametrize(
    ("key", "refused"),
    [
        ("product_id", ["events: max_partitions_per_insert_block"]),
        ("toYYYYMM(created_at), length(tags)", []),
        ("tuple()", []),
    ],
)
def test_partitions_that_would_split_a_batch_are_counted_over_a_sample_of_the_topic(
    key, refused, make_file, capsys, clickhouse_client, database, produce, topic
):
    file = make_file()
    name = file.read_text().partition("topics: [")[2].partition("]")[0]
    produce(name, [*make_events(150), b"{", None])
    statement = clickhouse_client.query(f"SHOW CREATE TABLE {database}.events").result_rows[0][0]
    clickhouse_client.command(f"DROP TABLE {database}.events SYNC")
    clickhouse_client.command(
        statement.replace("ORDER BY", f"PARTITION BY ({key}) ORDER BY").replace(
            "window = 1200", "window = 99000"
        )
    )
    code, findings = check(file, capsys, "--explain")
    assert [found["where"] for found in findings if found["level"] == "error"] == refused
    assert code == (2 if refused else 0)
    told = {found["where"]: found["what"] for found in findings}
    assert told["sample"] == "of the 152 newest records 1 would be dead letters"
    if "toYYYYMM" in key:
        assert "150 sampled rows fall into 12 partitions" in told["events: max_partitions_per_insert_block"]


def test_a_topic_that_most_records_of_cannot_be_read_is_remarked_on(make_file, capsys, produce):
    file = make_file()
    produce(file.read_text().partition("topics: [")[2].partition("]")[0], [b"{"] * 3)
    code, (finding,) = check(file, capsys)
    assert (code, finding["level"], finding["where"]) == (0, "warning", "sample")
    assert "3 newest records 3 would be dead letters" in finding["what"]
    assert "not_json" in finding["what"]


def test_a_topic_whose_size_limit_does_not_last_is_refused(make_file, capsys, produce):
    file = make_file(**{"retention.bytes": "100000", "retention.ms": "-1"})
    assert [finding["level"] for finding in check(file, capsys)[1]] == ["warning"]
    produce(file.read_text().partition("topics: [")[2].partition("]")[0], [b"x" * 2000] * 400)
    (where,) = refusals(file, capsys)
    assert where.endswith(": retention.bytes")


@pytest.mark.parametrize("hours", [1, -1])
def test_clocks_that_are_too_far_apart_are_refused(hours, make_file, capsys, monkeypatch):
    """The servers' clocks are real and right; this machine's is taken to be an hour off."""
    file = make_file()
    read = clock_skew.read_host_clock
    monkeypatch.setattr(clock_skew, "read_host_clock", lambda: read() + hours * HOUR)
    assert refusals(file, capsys) == ["clock of ClickHouse", "clock of the catalog"]
