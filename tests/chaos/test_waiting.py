"""Records that wait for their schema: decoded once it is known, and nobody is busy with those that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from simulation import Simulation, simulate

from oncehouse.config import Pipeline
from oncehouse.ledger import epochs
from oncehouse.ledger.records import Counts, Schema, Stage
from oncehouse.ledger.schemas import add_schemas
from oncehouse.pipeline.perform import Performer
from oncehouse.pipeline.verify import verify

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


def make_performer(simulation: Simulation) -> Performer:
    token = simulation.held[Stage.INGEST].token
    return Performer(simulation.spark, simulation.pipeline, simulation.catalog, token, say=print)


def let_wait(simulation: Simulation) -> None:
    read_avro(simulation, "events")
    simulation.kafka[0] += [write_avro(7, 1), write_avro(7, 2), write_avro(9, 3)]
    simulation.settle(10, 1)
    assert epochs.total_counts(simulation.catalog).waiting == 3
    assert not make_performer(simulation).is_asked()


def assert_sound(simulation: Simulation) -> None:
    assert not verify(simulation.pipeline, simulation.catalog, simulation.store, None, files=True).findings


def test_records_are_decoded_when_their_schema_is_known_also_those_of_a_topic_that_is_read_no_more():
    with simulate() as simulation:
        let_wait(simulation)
        read_avro(simulation, "others")
        add_schemas(simulation.catalog, [Schema(schema="7", format="avro", definition=_DEFINITION)])
        performer = make_performer(simulation)
        assert performer.is_asked()
        assert list(performer.decode_waiting()) == [Counts(read=3, new=2, waiting=1)]
        assert not performer.is_asked()
        assert_sound(simulation)


def test_a_schema_of_another_format_is_not_what_records_wait_for():
    with simulate() as simulation:
        let_wait(simulation)
        add_schemas(simulation.catalog, [Schema(schema="7", format="protobuf", definition="{}")])
        performer = make_performer(simulation)
        assert not performer.is_asked()
        assert not list(performer.decode_waiting())
        assert_sound(simulation)
