"""A field that comes up in an epoch: the process may die around its column, and every value is there in the end."""

from __future__ import annotations

import pytest
from simulation import Simulation, Step, simulate

from oncehouse.ledger.catalog import batches
from oncehouse.ledger.catalog.learned_fields import list_fields
from oncehouse.pipeline.ingest import epoch
from oncehouse.pipeline.load.insert_task import live_rows
from oncehouse.pipeline.schema import evolution

pytestmark = pytest.mark.short


def sent(simulation: Simulation) -> list[dict[str, object]]:
    """The rows of all parts, as they are sent."""
    rows: list[dict[str, object]] = []
    for batch in batches.list_batches(simulation.catalog):
        rows += live_rows(
            simulation.store, batches.load_parts(simulation.catalog, batch.batch_id)
        ).to_pylist()
    return rows


def adding(simulation: Simulation, monkeypatch) -> list[str]:
    added: list[str] = []
    monkeypatch.setattr(evolution, "add_columns", lambda _, fields: added.extend(fields))
    source = simulation.pipeline.source.model_copy(update={"new_fields": "add"})
    simulation.pipeline = simulation.pipeline.model_copy(update={"source": source})
    return added


def play(simulation: Simulation, dies_at: str | None) -> None:
    simulation.produce(0, 1, 2)
    simulation.settle(10, 1)
    simulation.kafka[0].append(b'{"id": 3, "note": "n", "coupon": "c"}')
    simulation.produce(0, 4)
    simulation.do(Step(kind="settle", numbers=(10, 1), dies_at=dies_at))
    simulation.drain()


def assert_every_value_was_sent(simulation: Simulation) -> None:
    found = {row["id"]: row.get("coupon", "no column") for row in sent(simulation)}
    assert found == {1: "no column", 2: "no column", 3: "c", 4: None}, "a value is not there"


@pytest.mark.scenario("new fields in the stream")
@pytest.mark.parametrize(
    "point", [None, "columns added", "fields learnt", "parts written", "before registering"]
)
def test_every_value_is_there_whenever_the_process_died(point, monkeypatch):
    with simulate() as simulation:
        added = adding(simulation, monkeypatch)
        play(simulation, point)
        assert set(added) == {"coupon"}
        assert [field.field for field in list_fields(simulation.catalog)] == ["coupon"]
        assert_every_value_was_sent(simulation)


@pytest.mark.defect("new fields in the stream")
def test_an_epoch_that_is_not_read_again_is_noticed(monkeypatch):
    """A seeded defect: the field is learnt, but the rows that brought it are settled without it."""
    meet = epoch.learn_new_fields
    monkeypatch.setattr(epoch, "learn_new_fields", lambda *given: bool(meet(*given)) and False)
    with simulate() as simulation:
        adding(simulation, monkeypatch)
        play(simulation, None)
        assert [field.field for field in list_fields(simulation.catalog)] == ["coupon"]
        with pytest.raises(AssertionError, match="a value is not there"):
            assert_every_value_was_sent(simulation)
