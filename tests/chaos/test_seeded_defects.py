"""The oracle is no ornament: with a defect put in on purpose it fails, for each rule that it guards.

Defects are put into this process, or travel to Spark's workers inside a function; the product knows none.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from defective_loader import retry_without_token

from live_pipeline import LivePipeline, encode, make_event
from oncehouse.devstack.chaos.injected_defects import register_anywhere
from oncehouse.devstack.proxies.faults import DropAnswer
from oncehouse.ledger.catalog import registration
from oncehouse.pipeline.ingest import epoch, kafka_source

pytestmark = pytest.mark.short

EVENTS = [make_event(number) for number in range(60)]


@pytest.mark.defect("one id with two payloads")
def test_a_winner_chosen_from_the_wrong_end_is_noticed(make_pipeline, monkeypatch):
    def scenario(live_pipeline: LivePipeline) -> None:
        live_pipeline.send_raw([encode(event, "first") for event in EVENTS[:20]])
        live_pipeline.send_raw([encode(event, "second") for event in EVENTS[:20]], partition=1)
        live_pipeline.expected = dict.fromkeys(EVENTS[:20], "first")
        live_pipeline.run()

    def decide_backwards(plan):
        import uuid

        import numpy as np

        from oncehouse.ledger.storage import key_index
        from oncehouse.pipeline.dedup import deduplicate

        def last_of_each(keys):
            last = np.ones(len(keys), dtype=np.bool_)
            last[:-1] = (keys.hi[1:] != keys.hi[:-1]) | (keys.lo[1:] != keys.lo[:-1])
            return last

        right = key_index.first_of_each
        key_index.first_of_each = last_of_each
        try:
            return deduplicate.decide(replace(plan, out=f"{plan.out}-{uuid.uuid4().hex}"))
        finally:
            key_index.first_of_each = right

    monkeypatch.setattr(epoch, "decide_task", decide_backwards)
    live_pipeline = make_pipeline(partitions=2)
    scenario(live_pipeline)
    with pytest.raises(AssertionError, match="a later payload took the place"):
        live_pipeline.assert_exact()


@pytest.mark.defect("duplicates near and far")
def test_an_index_that_is_not_asked_is_noticed(live_pipeline, monkeypatch):
    live_pipeline.send(EVENTS)
    live_pipeline.run()
    monkeypatch.setattr(epoch.segments, "list_segments", lambda catalog: ())
    live_pipeline.send(EVENTS[:10])
    live_pipeline.run()
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="10 rows are doubled"):
        live_pipeline.assert_exact()


def test_an_offset_that_is_skipped_is_noticed(live_pipeline, monkeypatch):
    live_pipeline.send(EVENTS[:30])
    live_pipeline.run()
    right = kafka_source.starting_positions

    def skip_some(*facts):
        return {place: offset + 5 for place, offset in right(*facts).items()}

    monkeypatch.setattr(kafka_source, "starting_positions", skip_some)
    live_pipeline.send(EVENTS[30:])
    live_pipeline.send(EVENTS[:20], partition=1)
    with monkeypatch.context() as continuity:
        continuity.setattr(registration, "_advance", register_anywhere())
        live_pipeline.run()
    with pytest.raises(AssertionError, match="are lost"):
        live_pipeline.assert_exact()


def test_a_skipped_offset_is_refused_by_the_catalog_itself(live_pipeline, monkeypatch):
    from oncehouse.errors import OffsetGapError

    live_pipeline.send(EVENTS[:30])
    live_pipeline.run()
    right = kafka_source.starting_positions

    def skip_some(*facts):
        return {(topic, number): at + 5 * (number == 0) for (topic, number), at in right(*facts).items()}

    monkeypatch.setattr(kafka_source, "starting_positions", skip_some)
    live_pipeline.send(EVENTS[30:])
    with pytest.raises(OffsetGapError, match="the ledger ends at 30"):
        live_pipeline.run()
    monkeypatch.undo()
    live_pipeline.run()
    live_pipeline.assert_exact()


@pytest.mark.defect("answer swallowed")
def test_a_token_that_is_left_out_is_noticed(make_pipeline, proxy, monkeypatch):
    """Without token and without looking first, the retry after a swallowed answer doubles its rows."""
    retry_without_token(monkeypatch)
    live_pipeline = make_pipeline()
    live_pipeline.go_through(proxy)
    live_pipeline.send(EVENTS)
    proxy.inject(DropAnswer())
    live_pipeline.run()
    assert proxy.happened[DropAnswer] == 1
    with pytest.raises(AssertionError, match="60 rows are doubled"):
        live_pipeline.assert_exact()
