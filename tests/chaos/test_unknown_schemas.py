"""Records that wait for their schema: decoded once it is known, and no stage is kept busy by those that cannot be."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulation import Simulation, simulate
from sqlalchemy import update

from oncehouse.config.pipeline import Pipeline
from oncehouse.errors import PoisonError
from oncehouse.ledger.catalog import batches, epochs
from oncehouse.ledger.catalog.known_schemas import add_schemas
from oncehouse.ledger.catalog.requests import add_request
from oncehouse.ledger.catalog.schema import dead_letter_files
from oncehouse.ledger.models import Counts, DeadLetterKind, RequestKind, Schema, Stage
from oncehouse.pipeline.ingest import dead_letter_writer, epoch
from oncehouse.pipeline.maintenance.verify import verify
from oncehouse.pipeline.requests import dead_letter_replay, handler, schema_wait
from oncehouse.pipeline.requests.handler import RequestHandler
from oncehouse.pipeline.schema.discovery import Learned
from registry import Registry, running_registry

pytestmark = pytest.mark.short

_DEFINITION = json.dumps({"type": "record", "name": "Event", "fields": [{"name": "id", "type": "long"}]})


def read_avro(simulation: Simulation, *topics: str) -> None:
    """Let the pipeline take Avro with a registry's prefix, from these topics."""
    file = Path(simulation.store.root).parent / "event.avsc"
    file.write_text(_DEFINITION, encoding="utf-8")
    given = simulation.pipeline.model_dump()
    given["source"] |= {
        "format": "avro",
        "fields": {"id": "UInt64"},
        "avro": {"schemas": {"1": str(file)}},
        "kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": topics},
    }
    simulation.pipeline = Pipeline(**given)


def write_avro(schema: int, number: int) -> bytes:
    return b"\0" + schema.to_bytes(4, "big") + bytes([number * 2])


def make_performer(simulation: Simulation) -> RequestHandler:
    token = simulation.held[Stage.INGEST].token
    return RequestHandler(simulation.spark, simulation.pipeline, simulation.catalog, token, say=print)


def let_wait(simulation: Simulation) -> None:
    read_avro(simulation, "events")
    simulation.kafka[0] += [write_avro(7, 1), write_avro(7, 2), write_avro(9, 3)]
    simulation.settle(10, 1)
    assert epochs.total_counts(simulation.catalog).waiting == 3
    assert not make_performer(simulation).has_work()


def assert_sound(simulation: Simulation) -> None:
    assert not verify(simulation.pipeline, simulation.catalog, simulation.store, None, files=True).findings


def learn_their_schema(simulation: Simulation) -> list[Counts]:
    let_wait(simulation)
    read_avro(simulation, "others")
    add_schemas(simulation.catalog, [Schema(schema="7", format="avro", definition=_DEFINITION)])
    handler = make_performer(simulation)
    assert handler.has_work()
    counts = list(handler.decode_waiting_records())
    assert not handler.has_work()
    return counts


def assert_all_is_kept(simulation: Simulation) -> None:
    """Every record that waited is a row or waits on."""
    rows = sum(part.live_rows for part in batches.list_parts(simulation.catalog))
    waiting = epochs.list_dead_letter_files(simulation.catalog, kind=DeadLetterKind.WAITING)
    assert (rows, sum(found.rows for found in waiting)) == (2, 1), "records that waited are lost"


@pytest.mark.scenario("schema version nobody knows")
def test_records_are_decoded_when_their_schema_is_known_also_those_of_a_topic_that_is_read_no_more():
    with simulate() as simulation:
        assert learn_their_schema(simulation) == [Counts(read=3, new=2, waiting=1)]
        assert_all_is_kept(simulation)
        assert_sound(simulation)


@pytest.mark.defect("schema version nobody knows")
def test_waiting_records_that_are_dropped_are_noticed(monkeypatch):
    """The files of what waits are done with, and nobody has read them."""
    monkeypatch.setattr(handler, "group_files", lambda *_, **__: [])
    with simulate() as simulation:
        learn_their_schema(simulation)
        with pytest.raises(AssertionError, match="records that waited are lost"):
            assert_all_is_kept(simulation)


def test_a_process_that_never_lives_long_decodes_some_of_what_waits_each_time(monkeypatch):
    """Each is killed after its first epoch, which takes whole files up to the first size; the next ones are larger."""
    monkeypatch.setattr(dead_letter_replay, "FIRST_RECORDS", 3)
    with simulate() as simulation:
        read_avro(simulation, "events")
        for first in range(0, 20, 2):
            simulation.kafka[0] += [write_avro(7, first), write_avro(7, first + 1)]
            simulation.settle(10, 1)
        add_schemas(simulation.catalog, [Schema(schema="7", format="avro", definition=_DEFINITION)])
        for decoded in (2, 4, 6):
            assert next(make_performer(simulation).decode_waiting_records()) == Counts(read=2, new=2)
            left = epochs.list_dead_letter_files(simulation.catalog, kind=DeadLetterKind.WAITING)
            assert sum(found.rows for found in left) == 20 - decoded
        assert list(make_performer(simulation).decode_waiting_records()) == [
            Counts(read=2, new=2),
            Counts(read=6, new=6),
            Counts(read=6, new=6),
        ]
        assert sum(part.live_rows for part in batches.list_parts(simulation.catalog)) == 20
        assert not make_performer(simulation).has_work()
        assert_sound(simulation)


def test_a_schema_of_another_format_is_not_what_records_wait_for():
    with simulate() as simulation:
        let_wait(simulation)
        add_schemas(simulation.catalog, [Schema(schema="7", format="protobuf", definition="{}")])
        handler = make_performer(simulation)
        assert not handler.has_work()
        assert not list(handler.decode_waiting_records())
        assert_sound(simulation)


def set_source(simulation: Simulation, **changes: object) -> None:
    given = simulation.pipeline.model_dump()
    given["source"] |= changes
    simulation.pipeline = Pipeline(**given)


def grow_older(simulation: Simulation, seconds: float) -> None:
    """As if the records had waited for so much longer."""
    with simulation.catalog.engine.begin() as connection:
        aged = dead_letter_files.c.registered_at - seconds
        connection.execute(update(dead_letter_files).values(registered_at=aged))


def count_files(simulation: Simulation, kind: DeadLetterKind) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for file in epochs.list_dead_letter_files(simulation.catalog, kind=kind):
        counted.update(file.reasons)
    return dict(counted)


def forge(simulation: Simulation, schemas: int) -> None:
    """Two records of a known schema, two of one that is to come, one of each of so many that never come."""
    read_avro(simulation, "events")
    forged = [write_avro(100 + number, number % 60) for number in range(schemas)]
    half = len(forged) // 2
    known, coming = [write_avro(1, 1), write_avro(1, 2)], [write_avro(7, 3), write_avro(7, 4)]
    simulation.kafka[0] += [*forged[:half], *known, *coming, *forged[half:]]


def test_records_that_have_waited_too_long_become_dead_letters_and_can_be_replayed():
    with simulate() as simulation:
        let_wait(simulation)
        set_source(simulation, schema_wait=3600.0)
        grow_older(simulation, 3500)
        assert not make_performer(simulation).has_work()
        grow_older(simulation, 200)
        add_schemas(simulation.catalog, [Schema(schema="7", format="avro", definition=_DEFINITION)])
        handler = make_performer(simulation)
        assert handler.has_work()
        assert list(handler.decode_waiting_records()) == [Counts(read=3, new=2, dead_letter=1)]
        assert not handler.has_work()
        assert count_files(simulation, DeadLetterKind.WAITING) == {}
        assert count_files(simulation, DeadLetterKind.DEAD) == {"schema_unknown": 1}
        assert_sound(simulation)
        add_schemas(simulation.catalog, [Schema(schema="9", format="avro", definition=_DEFINITION)])
        add_request(simulation.catalog, RequestKind.REPLAY_DEAD_LETTERS, {"reason": "schema_unknown"})
        assert list(make_performer(simulation).perform()) == [Counts(read=1, new=1)]
        assert_sound(simulation)


@pytest.fixture
def registry(monkeypatch) -> Iterator[Registry]:
    """It is asked at each check."""
    monkeypatch.setattr(schema_wait, "_CHECK_SECONDS", 0.0)
    with running_registry() as running:
        yield running


def start_late(simulation: Simulation, registry: Registry) -> RequestHandler:
    """The driver's first start after its records have waited for longer than they may."""
    avro = {**simulation.pipeline.source.avro.model_dump(), "registry": {"url": registry.url, "timeout": 5}}
    set_source(simulation, avro=avro, schema_wait=3600.0)
    grow_older(simulation, 8 * 86400)
    return make_performer(simulation)


def go_on(handler: RequestHandler) -> list[Counts]:
    """As between two epochs."""
    return [*handler.perform(), *handler.decode_waiting_records()] if handler.has_work() else []


def test_nothing_expires_while_the_registry_is_away(registry):
    """A schema may have been registered while the driver was stopped, or while the registry did not answer."""
    with simulate() as simulation:
        let_wait(simulation)
        registry.answers = [(503, b"")] * 1000
        handler = start_late(simulation, registry)
        assert not handler.has_work()
        assert not list(handler.decode_waiting_records())
        assert count_files(simulation, DeadLetterKind.WAITING) == {"7": 2, "9": 1}
        registry.answers = []
        registry.register("event", _DEFINITION, number=7)
        assert go_on(handler) == [Counts(read=3, new=2, dead_letter=1)]
        simulation.kafka[0] += [write_avro(11, 5)]
        simulation.settle(10, 1)
        grow_older(simulation, 8 * 86400)
        registry.answers = [(503, b"")] * 1000
        assert go_on(handler) == []
        registry.answers = []
        assert go_on(handler) == [Counts(read=1, dead_letter=1)]
        assert_sound(simulation)


def test_an_open_request_does_not_let_records_expire_unasked(registry):
    with simulate() as simulation:
        let_wait(simulation)
        registry.register("event", _DEFINITION, number=7)
        handler = start_late(simulation, registry)
        add_request(simulation.catalog, RequestKind.REPLAY_DEAD_LETTERS, {})
        assert go_on(handler) == [Counts(read=3, new=2, dead_letter=1)]
        assert_sound(simulation)


def test_of_many_schemas_all_are_asked_for_before_any_record_expires(registry, monkeypatch):
    monkeypatch.setattr(schema_wait, "_LONGEST_CHECK_SECONDS", 600.0)
    with simulate() as simulation:
        forge(simulation, 250)
        simulation.settle(1000, 1)
        for number in range(300, 340):
            registry.register(f"event {number}", _DEFINITION, number=number)
        handler = start_late(simulation, registry)
        assert go_on(handler) == [Counts(read=252, new=40, dead_letter=212)]
        assert_sound(simulation)


def test_a_slow_registry_is_asked_in_several_checks_before_any_record_expires(registry, monkeypatch):
    monkeypatch.setattr(schema_wait, "_LONGEST_CHECK_SECONDS", 0.0)
    with simulate() as simulation:
        forge(simulation, 250)
        simulation.settle(1000, 1)
        handler = start_late(simulation, registry)
        for asked in (100, 200):
            assert not list(handler.decode_waiting_records())
            assert len(set(registry.asked)) == asked
        assert list(handler.decode_waiting_records()) == [Counts(read=252, dead_letter=252)]
        assert len(set(registry.asked)) == 251
        assert_sound(simulation)


def test_records_wait_for_ever_where_that_is_asked_for():
    with simulate() as simulation:
        let_wait(simulation)
        set_source(simulation, schema_wait=None)
        grow_older(simulation, 100 * 86400)
        assert not make_performer(simulation).has_work()
        assert count_files(simulation, DeadLetterKind.WAITING) == {"7": 2, "9": 1}


def test_of_thousands_of_forged_schemas_some_wait_and_the_real_one_is_among_them(monkeypatch):
    monkeypatch.setattr(dead_letter_writer, "MOST_SCHEMAS", 10)
    with simulate() as simulation:
        forge(simulation, 15)
        simulation.settle(100, 1)
        counts = epochs.total_counts(simulation.catalog)
        assert (counts.read, counts.new, counts.waiting, counts.dead_letter) == (19, 2, 11, 6)
        waiting = count_files(simulation, DeadLetterKind.WAITING)
        assert (len(waiting), waiting["7"]) == (10, 2)
        assert count_files(simulation, DeadLetterKind.DEAD) == {"schema_unknown": 6}
        add_schemas(simulation.catalog, [Schema(schema="7", format="avro", definition=_DEFINITION)])
        assert list(make_performer(simulation).decode_waiting_records()) == [
            Counts(read=11, new=2, waiting=9)
        ]
        assert_sound(simulation)


@pytest.mark.parametrize("is_away", [False, True])
def test_a_share_of_unknown_schemas_stops_the_pipeline_but_not_while_the_registry_is_away(
    is_away, monkeypatch
):
    with simulate() as simulation:
        forge(simulation, 15)
        given = simulation.pipeline.model_dump()
        given["dead_letters"] = {"max_waiting_share": 0.5, "min_records": 10}
        simulation.pipeline = Pipeline(**given)
        add_schemas(simulation.catalog, [Schema(schema="1", format="avro", definition=_DEFINITION)])
        monkeypatch.setattr(epoch, "learn_schemas", lambda *_: Learned(registry_is_away=is_away))
        if is_away:
            simulation.settle(100, 1)
            assert epochs.total_counts(simulation.catalog).waiting == 17
            return
        with pytest.raises(
            PoisonError, match="17 of 19 records of this epoch name a schema that is not known"
        ):
            simulation.settle(100, 1)
        assert epochs.read_positions(simulation.catalog) == {}
        assert epochs.total_counts(simulation.catalog) == Counts()


def test_no_share_of_unknown_schemas_stops_the_pipeline_by_default():
    """A version may be deployed before the pipeline knows it."""
    with simulate() as simulation:
        read_avro(simulation, "events")
        simulation.kafka[0] += [write_avro(7, 1)] * 2000
        simulation.settle(5000, 1)
        assert epochs.total_counts(simulation.catalog).waiting == 2000
