"""A driver that was frozen while its catalog failed over: another one has had the lease, and the catalog forgot it.

The standby that is promoted has all that the first driver wrote, and nothing of the second. To the first it looks as
if it still held its leases; only the marks among the ledger's files say otherwise.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from chaos_processes import ended, freeze_whole
from live_pipeline import LivePipeline, make_event, wait_until
from oncehouse.cli.app import run_command
from oncehouse.devstack.chaos.scenario_run import thaw
from oncehouse.errors import CatalogBehindError, FencedError
from oncehouse.ledger import marks, take_lease
from oncehouse.ledger.catalog import leases
from oncehouse.ledger.catalog.batches import waiting_batches
from oncehouse.ledger.marks import Marks, read_marks
from postgres_pair import PostgresPair

EVENTS = [make_event(number) for number in range(150)]


@pytest.fixture
def pair(tmp_path_factory) -> Iterator[PostgresPair]:
    with PostgresPair(tmp_path_factory.mktemp("pair")) as started:
        yield started


@pytest.fixture
def impatient_pipeline(make_pipeline, pair) -> LivePipeline:
    return make_pipeline(epoch={"max_rows": 30}, lease=2.0, ledger={"catalog": pair.url})


def wait_for_end_of_leases(live_pipeline: LivePipeline) -> None:
    wait_until(
        lambda: all(
            lease.expires_at < live_pipeline.catalog.now()
            for lease in leases.list_leases(live_pipeline.catalog)
        ),
        "the leases to run out",
    )


def repair(live_pipeline: LivePipeline) -> None:
    wait_for_end_of_leases(live_pipeline)
    live_pipeline.age_marks()
    assert run_command([*live_pipeline.command_line("repair", "--apply")[3:]]) == 0


def follow_and_lose(live_pipeline: LivePipeline, pair: PostgresPair, first: subprocess.Popen[str]) -> None:
    """The first driver stands still, a second delivers the rest, and the catalog forgets the second."""
    wait_until(
        lambda: (
            first.poll() is not None
            or (len(live_pipeline.rows()) == 60 and not waiting_batches(live_pipeline.catalog))
        ),
        "the first driver to deliver",
    )
    freeze_whole(first)
    pair.cut_off()
    wait_for_end_of_leases(live_pipeline)
    live_pipeline.send(EVENTS[60:120])
    live_pipeline.run()
    live_pipeline.assert_exact()
    pair.fail_over()


def wake_former_holder(
    live_pipeline: LivePipeline, pair: PostgresPair, *, repaired: bool, defect: str = ""
) -> None:
    live_pipeline.send(EVENTS[:60])
    first = live_pipeline.spawn(defect=defect)
    with ended(first):
        follow_and_lose(live_pipeline, pair, first)
        if repaired:
            repair(live_pipeline)
            live_pipeline.send(EVENTS[120:])
            live_pipeline.run()
        before = sorted(live_pipeline.rows())
        thaw(first)
        wait_until(
            lambda: first.poll() is not None or sorted(live_pipeline.rows()) != before,
            "the first driver to do something",
        )
        assert sorted(live_pipeline.rows()) == before, "a former holder delivers rows again"
        assert first.wait() == (FencedError if repaired else CatalogBehindError).exit_code, (
            live_pipeline.log()[-2000:]
        )
    if not repaired:
        repair(live_pipeline)
    live_pipeline.run()
    live_pipeline.assert_exact()


@pytest.mark.scenario("former holder wakes after the catalog failed over")
@pytest.mark.parametrize("repaired", [False, True])
def test_a_driver_whose_successor_the_catalog_forgot_sends_nothing(impatient_pipeline, pair, repaired):
    wake_former_holder(impatient_pipeline, pair, repaired=repaired)


@pytest.mark.defect("former holder wakes after the catalog failed over")
def test_a_former_holder_that_looks_at_no_mark_is_noticed(impatient_pipeline, pair):
    with pytest.raises(AssertionError, match="a former holder delivers rows again"):
        wake_former_holder(impatient_pipeline, pair, repaired=False, defect="marks not seen")


def tokens(live_pipeline: LivePipeline) -> list[int]:
    return [lease.token for lease in leases.list_leases(live_pipeline.catalog)]


def forget_lease(live_pipeline: LivePipeline, pair: PostgresPair) -> None:
    """A driver takes its leases and stands still; the catalog forgets them, and a second driver works."""
    live_pipeline.send(EVENTS[:60])
    live_pipeline.run()
    pair.cut_off()
    before = tokens(live_pipeline)
    first = live_pipeline.spawn()
    with ended(first):
        wait_until(
            lambda: (
                first.poll() is not None
                or all(new > old for new, old in zip(tokens(live_pipeline), before, strict=True))
            ),
            "the first driver to take its leases",
        )
        known = set(tokens(live_pipeline))
        wait_until(
            lambda: (
                first.poll() is not None
                or set(read_marks(live_pipeline.store, live_pipeline.pipeline.pipeline).tokens.values())
                == known
            ),
            "the leases to be marked",
        )
        freeze_whole(first)
        given = tokens(live_pipeline)
        pair.fail_over()
        assert tokens(live_pipeline) == before, "the catalog has forgotten the leases"
        live_pipeline.send(EVENTS[60:])
        live_pipeline.run()
        assert min(tokens(live_pipeline)) > max(given), "a fencing token was given twice"
        thaw(first)
        assert first.wait(timeout=120) == FencedError.exit_code, live_pipeline.log()[-2000:]
    live_pipeline.assert_exact()


@pytest.mark.scenario("catalog forgets a lease that was given")
def test_a_fencing_token_that_the_catalog_forgot_is_not_given_again(impatient_pipeline, pair):
    forget_lease(impatient_pipeline, pair)


@pytest.mark.defect("catalog forgets a lease that was given")
def test_a_token_that_is_given_twice_is_noticed(impatient_pipeline, pair, monkeypatch):
    """Also where the second driver does not look for others' marks before it sends, which would stop it."""
    monkeypatch.setattr(take_lease, "read_marks", lambda *_: Marks(found=(), damaged=(), tokens={}))
    monkeypatch.setattr(marks, "_require_newest_term", lambda *_: None)
    with pytest.raises(AssertionError, match="a fencing token was given twice"):
        forget_lease(impatient_pipeline, pair)
