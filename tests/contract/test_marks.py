"""Marks among the ledger's files: whoever has seen nothing refuses a catalog that has lost transactions."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from ledger_examples import IDENTITY, make_batch, make_registration
from lost_transactions import lose_since, remember
from oncehouse.clickhouse.insert.deadline import read_moment
from oncehouse.errors import (
    CatalogBehindError,
    CorruptFileError,
    FencedError,
    FullDiskError,
    LeaseHeldError,
    TransientError,
)
from oncehouse.ledger.catalog import leases, table_adoption
from oncehouse.ledger.catalog.batches import (
    create_batches,
    list_attempts,
    open_parts,
    start_attempt,
    waiting_batches,
)
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.epochs import next_epoch
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.catalog.table_adoption import Adoption
from oncehouse.ledger.marks import (
    Mark,
    Sending,
    describe_ahead,
    drop_damaged,
    find_ahead,
    list_marks,
    read_marks,
    write_mark,
)
from oncehouse.ledger.models import AttemptOutcome, BatchStatus, Stage
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.ledger.take_lease import take_lease
from oncehouse.pipeline.checks.stale_catalog import describe_age, require_newest
from oncehouse.pipeline.load import insert_task
from oncehouse.pipeline.load.attempt import OpenedAttempt
from oncehouse.pipeline.maintenance.retention import plan_sweep
from oncehouse.pipeline.stages import supervisor


@pytest.fixture
def pipeline(tmp_path) -> SimpleNamespace:
    return SimpleNamespace(
        pipeline="shop", lease=600.0, ledger=SimpleNamespace(files=str(tmp_path / "files"))
    )


@pytest.fixture
def store(pipeline) -> FileStore:
    return FileStore(pipeline.ledger.files)


@pytest.fixture
def fresh(catalog_url, catalog):
    """Another process, which knows nothing of what this one has seen."""
    opened = Catalog(catalog_url, "shop", retry_seconds=())
    yield opened
    opened.close()


def take(pipeline, catalog: Catalog, stage: Stage, holder: str = "first", **which):
    return take_lease(pipeline, catalog, stage, holder, **which)


def end_process(catalog: Catalog) -> None:
    """All leases run out."""
    for lease in leases.list_leases(catalog):
        leases.release(catalog, lease)


def send(pipeline, catalog: Catalog, store: FileStore) -> str:
    """An epoch, its batch, and an attempt that is marked as the loader marks it; the batch's id."""
    ingest = take(pipeline, catalog, Stage.INGEST)
    load = take(pipeline, catalog, Stage.LOAD)
    register(catalog, ingest.token, make_registration())
    return send_open(catalog, store, load.token)


def marks_of(holder: str, store: FileStore) -> list[Mark]:
    return [mark for mark in list_marks(store, "shop") if mark.holder == holder]


def send_open(catalog: Catalog, store: FileStore, token: int) -> str:
    batch = make_batch(*open_parts(catalog))
    create_batches(catalog, token, [batch])
    attempt = start_attempt(catalog, token, batch.batch_id)
    write_mark(catalog, store, Stage.LOAD, token, Sending(attempt=attempt, epoch=1))
    return batch.batch_id


def test_a_catalog_that_lost_an_attempt_is_refused_with_the_remedy(pipeline, catalog, fresh, store):
    ingest = take(pipeline, catalog, Stage.INGEST)
    load = take(pipeline, catalog, Stage.LOAD)
    register(catalog, ingest.token, make_registration())
    moment = remember(catalog)
    batch_id = send_open(catalog, store, load.token)
    lose_since(catalog, moment)
    end_process(fresh)
    for stage in Stage:
        with pytest.raises(
            CatalogBehindError, match=rf"attempt 1 of batch {batch_id}.*oncehouse repair --plan"
        ):
            take(pipeline, fresh, stage, "second")
    with pytest.raises(CatalogBehindError, match="older than the ledger's files"):
        require_newest(fresh, store)
    assert all(lease.expires_at == 0 for lease in leases.list_leases(fresh)), "a refused lease is given back"


def test_exactly_one_lost_epoch_that_was_sent_is_not_taken_for_an_attempt_that_died(
    pipeline, catalog, fresh, store
):
    ingest = take(pipeline, catalog, Stage.INGEST)
    load = take(pipeline, catalog, Stage.LOAD)
    moment = remember(catalog)
    store.put(f"shop/0000000/0000000001-{ingest.token}-r0.arrow", lambda _: None)
    register(catalog, ingest.token, make_registration())
    send_open(catalog, store, load.token)
    lose_since(catalog, moment)
    end_process(fresh)
    assert next_epoch(fresh) == 1
    with pytest.raises(CatalogBehindError):
        require_newest(fresh, store)
    with pytest.raises(CatalogBehindError):
        take(pipeline, fresh, Stage.INGEST, "second")


def test_one_lost_epoch_of_which_nothing_was_sent_is_simply_read_again(pipeline, catalog, fresh, store):
    ingest = take(pipeline, catalog, Stage.INGEST)
    moment = remember(catalog)
    store.put(f"shop/0000000/0000000001-{ingest.token}-r0.arrow", lambda _: None)
    register(catalog, ingest.token, make_registration())
    lose_since(catalog, moment)
    end_process(fresh)
    require_newest(fresh, store)
    register(fresh, take(pipeline, fresh, Stage.INGEST, "second").token, make_registration())


def test_a_catalog_that_has_lost_nothing_is_taken_over(pipeline, catalog, fresh, store):
    send(pipeline, catalog, store)
    end_process(fresh)
    for stage in Stage:
        take(pipeline, fresh, stage, "second")
    assert describe_ahead(fresh, store) is None


def test_a_token_whose_taking_was_lost_is_not_given_to_another_process(pipeline, catalog, fresh):
    moment = remember(catalog)
    first = take(pipeline, catalog, Stage.INGEST)
    lose_since(catalog, moment)
    second = take(pipeline, fresh, Stage.INGEST, "second")
    assert second.token > first.token
    with pytest.raises(FencedError, match="taken over"):
        leases.renew(catalog, first, lease_seconds=600)


def test_a_lease_that_is_held_is_refused_before_any_mark_is_read(pipeline, catalog, fresh, store):
    take(pipeline, catalog, Stage.INGEST)
    store.replace("shop/marks/load-000000000001-00000000.json", b"{")
    with pytest.raises(LeaseHeldError):
        take(pipeline, fresh, Stage.INGEST, "second")


def test_a_later_term_covers_the_marks_before_it(pipeline, catalog, fresh, store):
    send(pipeline, catalog, store)
    end_process(fresh)
    for stage in Stage:
        take(pipeline, fresh, stage, "second")
    assert {(mark.stage, mark.holder) for mark in list_marks(store, "shop")} == {
        (stage, "second") for stage in Stage
    }


@pytest.fixture
def frozen(pipeline, catalog, fresh, store) -> SimpleNamespace:
    """The first process has begun an attempt and stands still, while `overtake()` lets another one load the batch."""
    ingest = take(pipeline, catalog, Stage.INGEST)
    load = take(pipeline, catalog, Stage.LOAD)
    register(catalog, ingest.token, make_registration())
    batch = make_batch(*open_parts(catalog))
    create_batches(catalog, load.token, [batch])
    before_attempt = remember(catalog)
    attempt = start_attempt(catalog, load.token, batch.batch_id)

    def overtake():
        end_process(fresh)
        other = take(pipeline, fresh, Stage.LOAD, "second")
        begun = start_attempt(fresh, other.token, batch.batch_id)
        write_mark(fresh, store, Stage.LOAD, other.token, Sending(attempt=begun, epoch=1))

    def wake_up():
        write_mark(catalog, store, Stage.LOAD, load.token, Sending(attempt=attempt, epoch=1))

    return SimpleNamespace(
        overtake=overtake,
        wake_up=wake_up,
        batch_id=batch.batch_id,
        load=load,
        before_attempt=before_attempt,
    )


def test_a_process_that_was_overtaken_sends_nothing_and_lowers_no_mark(frozen, store):
    frozen.overtake()
    before = marks_of("second", store)
    with pytest.raises(FencedError, match="taken over") as caught:
        frozen.wake_up()
    assert not isinstance(caught.value, CatalogBehindError), "the catalog knows who took over"
    assert marks_of("second", store) == before != []


def test_a_process_whose_successor_the_catalog_has_lost_sends_nothing(frozen, catalog, store):
    moment = remember(catalog)
    frozen.overtake()
    lose_since(catalog, moment)
    leases.renew(catalog, frozen.load, lease_seconds=600)
    before = marks_of("second", store)
    with pytest.raises(CatalogBehindError, match=r"token \d+ of the stage load .*repair --plan"):
        frozen.wake_up()
    assert marks_of("second", store) == before != []


def test_a_mark_under_the_same_token_of_another_holder_ends_the_process(frozen, store):
    name = f"load-{frozen.load.token:012d}-00000000.json"
    store.replace(f"shop/marks/{name}", b"{}")
    with pytest.raises(CatalogBehindError, match=name):
        frozen.wake_up()


def test_marks_of_earlier_terms_and_other_stages_end_nobody(frozen, store):
    store.replace(f"shop/marks/load-{frozen.load.token - 1:012d}-00000000.json", b"{}")
    store.replace(f"shop/marks/ingest-{frozen.load.token + 9:012d}-00000000.json", b"{}")
    frozen.wake_up()


def test_a_mark_is_written_only_when_there_is_more_to_say(pipeline, catalog, store, monkeypatch):
    send(pipeline, catalog, store)
    written: list[str] = []
    monkeypatch.setattr(FileStore, "replace", lambda _, path, content: written.append(path))
    token = next(lease.token for lease in leases.list_leases(catalog) if lease.stage is Stage.LOAD)
    write_mark(catalog, store, Stage.LOAD, token, Sending(epoch=1))
    assert written == []
    start_attempt(catalog, token, waiting_batches(catalog)[0].batch_id)
    write_mark(catalog, store, Stage.LOAD, token, Sending(epoch=1))
    write_mark(catalog, store, Stage.LOAD, token, Sending(epoch=1))
    assert len(written) == 1


def test_what_was_lost_of_which_nothing_was_sent_is_no_loss_for_who_takes_over(
    pipeline, catalog, fresh, store
):
    ingest = take(pipeline, catalog, Stage.INGEST)
    load = take(pipeline, catalog, Stage.LOAD)
    moment = remember(catalog)
    register(catalog, ingest.token, make_registration())
    create_batches(catalog, load.token, [make_batch(*open_parts(catalog))])
    end_process(fresh)
    for stage in Stage:
        take(pipeline, fresh, stage, "second")
    lose_since(fresh, moment)
    third = Catalog(str(fresh.engine.url.render_as_string(hide_password=False)), "shop", retry_seconds=())
    end_process(third)
    for stage in Stage:
        take(pipeline, third, stage, "third")
    third.close()


def test_a_later_term_that_sends_nothing_keeps_what_was_marked_before_it(pipeline, catalog, fresh, store):
    moment = remember(catalog)
    batch_id = send(pipeline, catalog, store)
    end_process(fresh)
    take(pipeline, fresh, Stage.LOAD, "second")
    (kept,) = [mark for mark in list_marks(store, "shop") if mark.stage is Stage.LOAD]
    assert (kept.holder, kept.batch_id, kept.writes) == ("second", batch_id, 2)
    lose_since(fresh, moment)
    assert batch_id in str(describe_ahead(fresh, store))


def test_an_epoch_that_was_confirmed_to_its_giver_is_marked(pipeline, catalog, fresh, store):
    ingest = take(pipeline, catalog, Stage.INGEST)
    moment = remember(catalog)
    register(catalog, ingest.token, make_registration())
    write_mark(catalog, store, Stage.INGEST, ingest.token, Sending(epoch=1))
    lose_since(catalog, moment)
    assert "epoch 1 was confirmed to the program that gave its rows" in str(describe_ahead(fresh, store))


@contextmanager
def late_mark(frozen):
    """The frozen process writes its mark after another one has taken the lease, before that one reads the marks."""
    put = FileStore.replace
    late: list[object] = []

    def replace(self, path, content):
        if "load" in path and not late:
            late.append(path)
            frozen.wake_up()
        put(self, path, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileStore, "replace", replace)
        yield


def test_a_mark_that_comes_while_another_process_takes_over_is_not_lost(
    frozen, catalog, fresh, store, pipeline
):
    end_process(fresh)
    with late_mark(frozen):
        take(pipeline, fresh, Stage.LOAD, "second")
    assert [mark.batch_id for mark in list_marks(store, "shop") if mark.stage is Stage.LOAD] == [
        frozen.batch_id
    ]


def test_a_loss_that_shows_only_while_another_process_takes_over_is_refused(
    pipeline, catalog, fresh, store, frozen
):
    """What the frozen process had confirmed was lost before its mark was written."""
    lose_since(catalog, frozen.before_attempt)
    end_process(fresh)
    with late_mark(frozen), pytest.raises(CatalogBehindError, match=frozen.batch_id):
        take(pipeline, fresh, Stage.LOAD, "second")
    assert all(lease.expires_at == 0 for lease in leases.list_leases(fresh)), "a refused lease is given back"
    with pytest.raises(CatalogBehindError, match=frozen.batch_id):
        take(pipeline, fresh, Stage.LOAD, "third")


def test_a_refused_lease_that_cannot_be_given_back_does_not_hide_why(
    pipeline, catalog, fresh, store, monkeypatch
):
    moment = remember(catalog)
    send(pipeline, catalog, store)
    lose_since(catalog, moment)

    def fail(*_: object) -> None:
        raise TransientError("the catalog is away")

    monkeypatch.setattr(leases, "release", fail)
    with pytest.raises(CatalogBehindError):
        take(pipeline, fresh, Stage.LOAD, "second")


def test_a_mark_that_cannot_be_read_is_named(pipeline, catalog, store):
    store.replace("shop/marks/load-000000000001-00000000.json", b"{")
    with pytest.raises(CorruptFileError, match="load-000000000001-00000000"):
        take(pipeline, catalog, Stage.LOAD)


def test_a_repair_reads_past_a_damaged_mark_and_counts_its_token(pipeline, catalog, store):
    store.replace("shop/marks/load-000000000007-00000000.json", b"{")
    store.replace("shop/marks/ingest-000000000001-00000000.json", b'{"stage": "ingest", "token": "x"}')
    with pytest.raises(CorruptFileError, match=r"ingest-000000000001.*repair --apply"):
        require_newest(catalog, store)
    assert describe_age(catalog, store) is None
    assert take(pipeline, catalog, Stage.LOAD, "repair", may_be_behind=True).token == 8
    assert [mark.path for mark in read_marks(store, "shop").damaged] == [
        "shop/marks/ingest-000000000001-00000000.json",
        "shop/marks/load-000000000007-00000000.json",
    ]
    drop_damaged(store, "shop")
    assert len(list_marks(store, "shop")) == 1


def test_marks_of_a_later_version_are_read_as_far_as_they_are_known(pipeline, catalog, store):
    batch_id = send(pipeline, catalog, store)
    for path in store.walk("shop/marks"):
        told = json.loads(store.read_bytes(path)) | {"invented_later": [1]}
        store.replace(path, json.dumps(told).encode())
    store.replace("shop/marks/reload-000000000090-00000000.json", b"what it says, that version knows")
    assert describe_ahead(catalog, store) is None
    assert batch_id in {mark.batch_id for mark in list_marks(store, "shop")}
    assert read_marks(store, "shop").tokens["reload"] == 90
    end_process(catalog)
    take(pipeline, catalog, Stage.LOAD)


def test_marks_are_never_swept(pipeline, catalog, store):
    take(pipeline, catalog, Stage.LOAD)
    paths = list(store.walk("shop/marks"))
    assert paths
    assert plan_sweep(paths, set(), token=99, last_epoch=99, retention_token=99, now=1e12) == ()


def test_after_a_repair_every_mark_is_satisfied_and_no_token_comes_back(pipeline, catalog, fresh, store):
    moment = remember(catalog)
    send(pipeline, catalog, store)
    lose_since(catalog, moment)
    held = take(pipeline, fresh, Stage.INGEST, "repair", may_be_behind=True)
    found = list_marks(store, "shop")
    learnt = Adoption(
        after_token=max(mark.token for mark in found), after_writes=max(mark.writes for mark in found)
    )
    table_adoption.adopt(fresh, held.token, learnt)
    assert describe_ahead(fresh, store) is None
    for stage in Stage:
        taken = take(pipeline, fresh, stage, "second")
        assert all(taken.token > mark.token for mark in found)


def test_a_pipeline_that_a_catalog_does_not_know_is_known_by_its_marks(catalog_url, catalog, store, pipeline):
    send(pipeline, catalog, store)
    catalog.close()
    other = Catalog(catalog_url, "shop", retry_seconds=())
    with other.engine.begin() as connection:
        for name in ("pipelines", "leases"):
            connection.exec_driver_sql(f"DELETE FROM oncehouse_{name}")
    with pytest.raises(CatalogBehindError, match="does not know the pipeline"):
        require_newest(other, store)
    other.adopt(IDENTITY)
    with pytest.raises(CatalogBehindError):
        require_newest(other, store)
    other.close()


def test_leases_that_were_taken_are_given_back_when_the_next_one_is_refused(pipeline, catalog, monkeypatch):
    def refuse_load(pipeline, catalog, stage, holder):
        if stage is Stage.LOAD:
            raise CatalogBehindError("it has lost something meanwhile")
        return take_lease(pipeline, catalog, stage, holder)

    monkeypatch.setattr(supervisor, "take_lease", refuse_load)
    running = supervisor.StageSupervisor(
        pipeline, catalog, None, None, stop=threading.Event(), say=lambda _: None
    )
    with pytest.raises(CatalogBehindError):
        running.go(once=True, wait=False)
    assert [lease.expires_at for lease in leases.list_leases(catalog)] == [0.0]


# The loader


@pytest.fixture
def sending(pipeline, catalog, store, monkeypatch):
    """`sending()` sends the open parts as one batch; `inserted` has what stood in the marks when the insert began."""
    inserted: list[tuple[Mark, ...]] = []
    ingest = take(pipeline, catalog, Stage.INGEST)
    load = take(pipeline, catalog, Stage.LOAD)
    register(catalog, ingest.token, make_registration())
    batch = make_batch(*open_parts(catalog))
    create_batches(catalog, load.token, [batch])

    def insert(_spark, plan):
        inserted.append(list_marks(store, "shop"))
        return insert_task.Inserted(rows=10, seconds=0.0)

    monkeypatch.setattr(insert_task, "_run", insert)
    plan = SimpleNamespace(
        parts=tuple(SimpleNamespace(part=part) for part in batch.parts),
        files_root=pipeline.ledger.files,
        request=SimpleNamespace(outcome_unknown=False, attempt=1, batch_id=batch.batch_id, table=batch.table),
    )
    monkeypatch.setattr(insert_task, "open_attempt", lambda *_: OpenedAttempt(began=read_moment()))
    monkeypatch.setattr(insert_task, "plan_load", lambda *_, **__: plan)
    table = SimpleNamespace(name=batch.table)
    whole = SimpleNamespace(
        pipeline="shop", tables=(table,), retry=SimpleNamespace(base=0.1, longest=1.0), ledger=pipeline.ledger
    )

    def run():
        waiting = waiting_batches(catalog)[0]
        return insert_task.load(None, whole, catalog, load.token, waiting, facts=None)

    return SimpleNamespace(run=run, inserted=inserted, batch_id=batch.batch_id)


def test_an_attempt_is_marked_before_its_first_byte(sending, catalog):
    assert sending.run().status is BatchStatus.IN_CLICKHOUSE
    (seen,) = sending.inserted
    (mark,) = [mark for mark in seen if mark.stage is Stage.LOAD]
    assert (mark.batch_id, mark.attempt, mark.epoch) == (sending.batch_id, 1, 1)
    assert mark.writes == 2, "the batch and its attempt"


def test_without_room_for_the_mark_nothing_is_sent_and_nothing_is_unknown(sending, catalog, monkeypatch):
    def full(*_: object) -> None:
        raise FullDiskError("no space is left")

    monkeypatch.setattr(FileStore, "replace", full)
    result = sending.run()
    assert (result.status, result.outcome) == (BatchStatus.RETRY, AttemptOutcome.FAILED)
    assert sending.inserted == []
    assert [attempt.outcome for attempt in list_attempts(catalog, sending.batch_id)] == [
        AttemptOutcome.FAILED
    ]


def test_the_farthest_mark_is_told():
    def mark(stage: Stage, writes: int) -> Mark:
        return Mark(stage=stage, token=1, holder="first", writes=writes)

    load = [mark(Stage.LOAD, 3), mark(Stage.LOAD, 5)]
    assert find_ahead(load, {Stage.LOAD: 5}) is None
    assert find_ahead(load, {Stage.LOAD: 2}) == load[1]
    assert find_ahead([mark(Stage.INGEST, 1), *load], {Stage.LOAD: 5}) == mark(Stage.INGEST, 1)
