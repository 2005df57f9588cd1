"""Records that wait for their schema: decoded once it is known, and no stage is kept busy by those that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from simulation import Simulation, simulate

from oncehouse.config.pipeline import Pipeline
from oncehouse.ledger.catalog import batches, epochs
from oncehouse.ledger.catalog.known_schemas import add_schemas
from oncehouse.ledger.models import Counts, LetterKind, Schema, Stage
from oncehouse.pipeline.maintenance.verify import verify
from oncehouse.pipeline.requests import dead_letter_replay, handler
from oncehouse.pipeline.requests.handler import RequestHandler

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
    waiting = epochs.list_dead_letter_files(simulation.catalog, kind=LetterKind.WAITING)
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
            left = epochs.list_dead_letter_files(simulation.catalog, kind=LetterKind.WAITING)
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
