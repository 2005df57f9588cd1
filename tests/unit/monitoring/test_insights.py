from __future__ import annotations

import json
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ledger_examples import (
    IDENTITY,
    TABLE,
    TOPIC,
    make_batch,
    make_dead_letters,
    make_part,
    make_registration,
    make_segment,
    put_dead_letters,
    register_epochs,
    take_lease,
)
from oncehouse.cli.output import plain
from oncehouse.cli.pipeline.status import _show_tables
from oncehouse.errors import ConfigurationError, CorruptFileError
from oncehouse.ledger.catalog import dead_letters, epochs
from oncehouse.ledger.catalog.batches import create_batches, finish_attempt, open_parts, start_attempt
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.catalog.requests import add_request
from oncehouse.ledger.catalog.row_mappers import dead_letter_file_of
from oncehouse.ledger.models import (
    AttemptOutcome,
    BatchStatus,
    Counts,
    DeadLetterKind,
    EpochKind,
    RequestKind,
    Stage,
)
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.metrics.collect import _request_samples
from oncehouse.metrics.definitions import WAITING_FOR_SCHEMA
from oncehouse.monitoring import batches
from oncehouse.monitoring import overview as insights
from oncehouse.monitoring.actions import count_dead_letters
from oncehouse.monitoring.dead_letters import list_dead_letters, show_beginning
from oncehouse.pipeline.dead_letters.filter import Selection


@pytest.fixture
def catalog(tmp_path):
    opened = Catalog(f"sqlite:///{tmp_path / 'catalog.db'}", "shop", retry_seconds=())
    opened.prepare()
    opened.adopt(IDENTITY)
    yield opened
    opened.close()


@pytest.fixture
def store(tmp_path) -> FileStore:
    return FileStore(str(tmp_path / "files"))


def test_an_empty_ledger_has_an_overview(catalog):
    overview = insights.read_overview(catalog, end_offsets={})
    assert (overview.pipeline, overview.lag, overview.oldest_waiting_seconds) == ("shop", 0, None)
    assert (overview.epochs, overview.batches, overview.key_index.keys) == ((), (), 0)
    assert json.dumps(plain(overview))


def test_the_overview_adds_up_epochs_by_kind(catalog):
    token = take_lease(catalog)
    counts = Counts(read=10, new=6, duplicate=3, dead_letter=1, conflicts=2)
    parts = (make_part("part-1", rows=9, live_rows=6),)
    dead_letters, segments = (
        (make_dead_letters("l1"), make_dead_letters("l2", rows=4)),
        (make_segment("a"), make_segment("b")),
    )
    register(
        catalog,
        token,
        make_registration(counts=counts, parts=parts, dead_letter_files=dead_letters, segments=segments),
    )
    register(catalog, token, make_registration(2, 10, 20))
    tried = make_registration(3, 0, 1, kind=EpochKind.REPLAY, ranges=(), tried_dead_letter_files=("l1",))
    register(catalog, token, tried)
    overview = insights.read_overview(catalog)
    totals = {found.kind: (found.epochs, found.last_epoch, found.counts.read) for found in overview.epochs}
    assert totals == {EpochKind.KAFKA: (2, 2, 20), EpochKind.REPLAY: (1, 3, 1)}
    assert overview.conflicts == 2
    assert overview.dead_letters == {"not_json": 4}
    assert (overview.key_index.segments, overview.key_index.keys) == (2, 20)


def test_lag_is_what_kafka_has_and_no_epoch_has_settled(catalog):
    register_epochs(catalog, 2)
    ends = {(TOPIC, 0): 25, (TOPIC, 1): 7}
    overview = insights.read_overview(catalog, end_offsets=ends)
    lags = [(position.partition, position.next_offset, position.lag) for position in overview.positions]
    assert lags == [(0, 20, 5), (1, 0, 7)]
    assert overview.lag == 12


def test_without_kafka_the_lag_is_not_known(catalog):
    register_epochs(catalog)
    overview = insights.read_overview(catalog)
    assert (overview.lag, overview.positions[0].lag, overview.positions[0].next_offset) == (None, None, 10)


def test_the_overview_shows_where_rows_are_between_ledger_and_clickhouse(catalog):
    register_epochs(catalog, 4)
    token = take_lease(catalog, Stage.LOAD)
    first, second, third, _ = open_parts(catalog)
    loaded, waiting = make_batch(first, second), make_batch(third)
    create_batches(catalog, token, [loaded, waiting])
    attempt = start_attempt(catalog, token, loaded.batch_id)
    finish_attempt(catalog, token, attempt, status=BatchStatus.IN_CLICKHOUSE, outcome="inserted")
    overview = insights.read_overview(catalog)
    assert [(found.table, found.parts, found.rows) for found in overview.open_parts] == [(TABLE, 1, 10)]
    batches = [(found.status, found.batches, found.rows) for found in overview.batches]
    assert batches == [(BatchStatus.IN_CLICKHOUSE, 1, 20), (BatchStatus.NEW, 1, 10)]
    assert overview.rows_in_clickhouse == {TABLE: 20}
    assert overview.oldest_waiting_seconds >= 0


def test_leases_and_requests_are_shown(catalog):
    take_lease(catalog)
    add_request(catalog, RequestKind.REBUILD_INDEX, {"why": "asked"})
    overview = insights.read_overview(catalog)
    (lease,) = overview.leases
    assert (lease.stage, lease.holder, lease.token) == (Stage.INGEST, "this test", 1)
    assert 0 < lease.ends_in_seconds <= 600
    assert [request.arguments for request in overview.requests] == [{"why": "asked"}]
    shown = json.loads(json.dumps(plain(overview)))
    assert shown["requests"][0]["kind"] == "rebuild-index"
    assert shown["leases"][0]["holder"] == "this test"


def test_a_batch_is_shown_with_parts_attempts_and_doubt(catalog):
    register_epochs(catalog, 2)
    token = take_lease(catalog, Stage.LOAD)
    batch = make_batch(*open_parts(catalog))
    create_batches(catalog, token, [batch])
    assert not batches.read_batch(catalog, batch.batch_id).outcome_unknown
    attempt = start_attempt(catalog, token, batch.batch_id)
    finish_attempt(
        catalog,
        token,
        attempt,
        status=BatchStatus.RETRY,
        outcome="unknown",
        detail="timeout",
        wait_seconds=60,
    )
    detail = batches.read_batch(catalog, batch.batch_id)
    assert [part.part for part in detail.parts] == ["part-1", "part-2"]
    assert [found.detail for found in detail.attempts] == ["timeout"]
    assert detail.outcome_unknown
    assert 0 < detail.view.due_in_seconds <= 60
    again = start_attempt(catalog, token, batch.batch_id)
    finish_attempt(catalog, token, again, status=BatchStatus.IN_CLICKHOUSE, outcome="inserted")
    arrived = batches.read_batch(catalog, batch.batch_id)
    assert (arrived.outcome_unknown, arrived.view.due_in_seconds) == (False, None)
    assert batches.list_batches(catalog, statuses=[BatchStatus.PARKED]) == ()
    assert [view.batch.batch_id for view in batches.list_batches(catalog, table=TABLE)] == [batch.batch_id]


def test_every_outcome_of_an_attempt_is_shown_as_done_bad_or_in_doubt():
    assert {outcome: batches.rate_outcome(outcome) for outcome in (None, *AttemptOutcome)} == {
        None: "warn",
        AttemptOutcome.INSERTED: "done",
        AttemptOutcome.ALREADY_THERE: "done",
        AttemptOutcome.VIEWS_UNPROVEN: "warn",
        AttemptOutcome.FAILED: "bad",
        AttemptOutcome.UNKNOWN: "warn",
    }


def test_an_unknown_batch_is_refused_by_name(catalog):
    with pytest.raises(ConfigurationError, match="no batch nowhere"):
        batches.read_batch(catalog, "nowhere")


def test_dead_letters_are_listed_newest_first_with_a_hint_of_their_bytes(catalog, store):
    token = take_lease(catalog)
    old = put_dead_letters(store, "a", [(1, "not_json", b"{"), (2, "too_big", b"x" * 5000)])
    new = put_dead_letters(store, "b", [(11, "not_json", None), (12, "not_json", b"\xff\x00")], epoch=2)
    register(catalog, token, make_registration(1, 0, 10, dead_letter_files=(old,)))
    register(catalog, token, make_registration(2, 10, 20, dead_letter_files=(new,)))
    dead_letters = list_dead_letters(catalog, store).dead_letters
    assert [(letter.epoch, letter.offset, letter.reason) for letter in dead_letters] == [
        (2, 12, "not_json"),
        (2, 11, "not_json"),
        (1, 2, "too_big"),
        (1, 1, "not_json"),
    ]
    assert [letter.begins for letter in dead_letters] == ["\\xff\\x00", None, "x" * 200, "{"]
    assert dead_letters[0].detail == "why\\x1b[2J"
    assert dead_letters[0].timestamp == "2026-01-02T00:00:00+00:00"
    assert json.dumps([plain(letter) for letter in dead_letters])


def test_dead_letters_are_chosen_by_reason_and_limited(catalog, store):
    token = take_lease(catalog)
    file = put_dead_letters(store, "a", [(1, "not_json", b"{"), (2, "too_big", b"x"), (3, "not_json", b"[")])
    register(catalog, token, make_registration(dead_letter_files=(file,)))
    by_reason = list_dead_letters(catalog, store, selection=Selection(reason="not_json"))
    assert [letter.offset for letter in by_reason.dead_letters] == [3, 1]
    page = list_dead_letters(catalog, store, limit=2)
    assert [letter.offset for letter in page.dead_letters] == [3, 2]
    assert list_dead_letters(catalog, store, selection=Selection(reason="unheard")).dead_letters == ()


@given(limit=st.integers(1, 12), sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4), data=st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pages_join_without_gaps_whatever_is_asked_for(limit, sizes, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    opened, store = Catalog(f"sqlite:///{folder}/catalog.db", "shop"), FileStore(str(folder / "files"))
    opened.prepare()
    opened.adopt(IDENTITY)
    token, offset, expected = take_lease(opened), 0, []
    reason = data.draw(st.sampled_from([None, "not_json"]))
    for epoch, size in enumerate(sizes, start=1):
        rows = [(offset + n, data.draw(st.sampled_from(["not_json", "too_big"])), b"{") for n in range(size)]
        file = put_dead_letters(store, f"file-{epoch}", rows, epoch=epoch)
        register(opened, token, make_registration(epoch, offset, offset + size, dead_letter_files=(file,)))
        expected += [number for number, why, _ in rows if reason in (None, why)]
        offset += size
    found, after = [], None
    while True:
        page = list_dead_letters(opened, store, selection=Selection(reason=reason), limit=limit, after=after)
        found += [letter.offset for letter in page.dead_letters]
        assert len(page.dead_letters) <= limit
        if (after := page.next) is None:
            break
    opened.close()
    assert found == expected[::-1]


def test_looking_reads_no_more_files_of_letters_than_are_shown(catalog, store, monkeypatch):
    token = take_lease(catalog)
    file = put_dead_letters(store, "a", [(1, "not_json", b"{")])
    many = tuple(replace(file, dead_letter_file=f"{number:04d}") for number in range(400))
    register(catalog, token, make_registration(dead_letter_files=many))
    read = []
    for module in (epochs, dead_letters):
        monkeypatch.setattr(
            module, "dead_letter_file_of", lambda row: read.append(row) or dead_letter_file_of(row)
        )
    assert insights.read_overview(catalog).dead_letters == {"not_json": 400}
    assert count_dead_letters(catalog) == {"not_json": 400}
    assert read == []
    assert len(list_dead_letters(catalog, store, limit=3).dead_letters) == 3
    assert len(read) < 200


@pytest.mark.parametrize("after", ["gone:3", "a:", "a:x", "a:²", "a:" + "9" * 5000, "\0:1", "\ud800:1", ":"])
def test_a_place_that_cannot_be_is_refused(catalog, store, after):
    token = take_lease(catalog)
    file = put_dead_letters(store, "a", [(1, "not_json", b"{")])
    register(catalog, token, make_registration(dead_letter_files=(file,)))
    with pytest.raises(ConfigurationError, match="tried again"):
        list_dead_letters(catalog, store, after=after)


def test_a_page_behind_letters_that_are_gone_is_refused(catalog, store):
    with pytest.raises(ConfigurationError, match="tried again"):
        list_dead_letters(catalog, store, after="gone:3")


def test_a_damaged_file_of_letters_is_named(catalog, store):
    token = take_lease(catalog)
    file = put_dead_letters(store, "a", [(1, "not_json", b"{")])
    register(catalog, token, make_registration(dead_letter_files=(file,)))
    path = store.local(file.file)
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(CorruptFileError, match="letters/a"):
        list_dead_letters(catalog, store)


@given(st.binary(max_size=2000))
@example("\u202e\u2028\x9b31m\x07\n\r\t".encode())
@example(b"\x1b]0;title\x07" * 50)
def test_no_hint_makes_a_terminal_do_anything(value):
    hint = show_beginning(value)
    assert all(c.isprintable() or unicodedata.category(c) == "Zs" for c in hint)
    assert not set(hint) & {"\n", "\r", "\t", "\x1b", "\x07", "\x9b", "\u202e", "\u2028"}


@given(st.text(max_size=300))
def test_a_hint_keeps_what_is_printable(text):
    printable = "".join(c for c in text if c.isprintable())
    assert show_beginning(printable.encode()) == printable[:200]


def test_of_many_schemas_that_records_wait_for_twenty_are_named_and_the_others_counted(catalog, capsys):
    token = take_lease(catalog)
    schemas = {"real": 3, **{str(number): 1 for number in range(100, 400)}}
    waiting = replace(make_dead_letters("w", rows=303), reasons=schemas, kind=DeadLetterKind.WAITING)
    register(catalog, token, make_registration(dead_letter_files=(waiting,)))
    overview = insights.read_overview(catalog)
    assert next(iter(overview.waiting.items())) == ("real", 3)
    assert (len(overview.waiting), overview.waiting_others) == (20, 303 - 22)
    samples = [found for found in _request_samples(overview) if found.metric is WAITING_FOR_SCHEMA]
    assert len(samples) == 21
    assert sum(found.value for found in samples) == 303
    assert samples[-1].labels == ("shop", "")
    _show_tables(overview)
    shown = capsys.readouterr().out
    assert "(all others)" in shown
    assert shown.count("\n") < 30
