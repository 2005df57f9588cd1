"""Several drivers of one pipeline: one works at a time, and a dead one is followed by another within a bound."""

from __future__ import annotations

import signal

import pytest
from sqlalchemy import text

from chaos_processes import ended, freeze_whole
from live_pipeline import LivePipeline, make_event, wait_until
from oncehouse.devstack.chaos.scenario_run import thaw
from oncehouse.devstack.subprocesses import python_workers
from oncehouse.ledger.catalog import epochs, leases
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.models import Stage

EVENTS = [make_event(number) for number in range(150)]
# A process that waits looks once a second, and a busy machine may be late.
LOOKING_SECONDS = 5.0


def freeze_and_wake(live_pipeline: LivePipeline, *, defect: str = "") -> None:
    live_pipeline.send(EVENTS[:60])
    frozen = live_pipeline.spawn(defect=defect)
    with ended(frozen):
        wait_until(lambda: live_pipeline.rows() or frozen.poll() is not None, "the first driver at work")
        freeze_whole(frozen)
        assert python_workers(frozen.pid), "it has workers, which hang with it"
        live_pipeline.send(EVENTS[30:])
        # The lease of a process that is alive, if not well, has to run out first.
        wait_until(
            lambda: all(
                lease.expires_at < live_pipeline.catalog.now()
                for lease in leases.list_leases(live_pipeline.catalog)
            ),
            "the leases to run out",
        )
        live_pipeline.run()
        live_pipeline.assert_exact()
        before = (
            epochs.list_epochs(live_pipeline.catalog),
            live_pipeline.batches(),
            leases.list_leases(live_pipeline.catalog),
        )
        thaw(frozen)
        wait_until(
            lambda: frozen.poll() is not None or leases.list_leases(live_pipeline.catalog) != before[2],
            "the frozen driver to do something",
        )
        assert leases.list_leases(live_pipeline.catalog) == before[2], "a driver that was followed goes on"
        assert frozen.wait() == 4, live_pipeline.log()[-2000:]
        assert "Traceback" not in live_pipeline.log()
    assert (
        epochs.list_epochs(live_pipeline.catalog),
        live_pipeline.batches(),
        leases.list_leases(live_pipeline.catalog),
    ) == before
    live_pipeline.assert_exact()


@pytest.fixture
def impatient_pipeline(make_pipeline) -> LivePipeline:
    return make_pipeline(epoch={"max_rows": 30}, lease=2.0)


@pytest.mark.scenario("frozen driver wakes up")
def test_a_frozen_driver_is_fenced_when_it_wakes_up(impatient_pipeline):
    freeze_and_wake(impatient_pipeline)


@pytest.mark.defect("frozen driver wakes up")
def test_a_driver_that_ignores_fencing_is_noticed(impatient_pipeline):
    with pytest.raises(AssertionError, match="a driver that was followed goes on"):
        freeze_and_wake(impatient_pipeline, defect="no fencing")


def holders(live_pipeline: LivePipeline) -> list[str]:
    return [lease.holder for lease in leases.list_leases(live_pipeline.catalog)]


def run_two(live_pipeline: LivePipeline, *, defect: str = "") -> None:
    live_pipeline.send(EVENTS[:60])
    first = live_pipeline.spawn()
    with ended(first):
        wait_until(lambda: live_pipeline.rows() or first.poll() is not None, "the first driver at work")
        before = holders(live_pipeline)
        second = live_pipeline.spawn("--no-wait", defect=defect)
        with ended(second):
            wait_until(
                lambda: second.poll() is not None or holders(live_pipeline) != before,
                "the second driver to decide",
            )
            assert holders(live_pipeline) == before, "both drivers work"
            assert second.wait() == 4, live_pipeline.log()[-2000:]
        live_pipeline.send(EVENTS[60:])
        wait_until(lambda: len(live_pipeline.rows()) >= len(EVENTS), "the first driver to go on")
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=90) == 0
    assert f"the stage {Stage.INGEST} is run by" in live_pipeline.log()
    live_pipeline.assert_exact()


@pytest.mark.scenario("two drivers")
def test_of_two_drivers_one_works_and_one_leaves_with_a_message(make_pipeline):
    run_two(make_pipeline())


@pytest.mark.defect("two drivers")
def test_a_driver_that_does_not_ask_for_leases_is_noticed(make_pipeline):
    with pytest.raises(AssertionError, match="both drivers work"):
        run_two(make_pipeline(), defect="leases not asked")


class LeaseLog:
    """Every change of a lease, on the catalog's own clock: written down by the catalog itself."""

    def __init__(self, catalog: Catalog, lease_seconds: float) -> None:
        self._catalog = catalog
        self._lease_seconds = lease_seconds
        catalog.prepare()
        with catalog.engine.begin() as connection:
            connection.execute(text("CREATE TABLE lease_log (stage TEXT, token INTEGER, expires_at REAL)"))
            for event in ("INSERT", "UPDATE"):
                connection.execute(
                    text(
                        f"CREATE TRIGGER log_{event} AFTER {event} ON oncehouse_leases BEGIN "
                        "INSERT INTO lease_log VALUES (new.stage, new.token, new.expires_at); END"
                    )
                )

    def renewals(self, stage: Stage, token: int) -> list[float]:
        """When this token's lease was taken and renewed."""
        query = text(
            "SELECT expires_at FROM lease_log WHERE stage = :stage AND token = :token AND expires_at > 0"
        )
        with self._catalog.read() as connection:
            found = connection.execute(query, {"stage": str(stage), "token": token}).scalars()
            return sorted(expires_at - self._lease_seconds for expires_at in found)


def be_followed(live_pipeline: LivePipeline, *, defect: str = "elsewhere") -> None:
    """A driver is killed on another machine, where nobody can see its death; one that waits takes its stages."""
    bound_seconds = live_pipeline.pipeline.lease + LOOKING_SECONDS
    log = LeaseLog(live_pipeline.catalog, live_pipeline.pipeline.lease)
    live_pipeline.send(EVENTS[:60])
    first = live_pipeline.spawn(defect="elsewhere")
    with ended(first):
        wait_until(lambda: live_pipeline.rows() or first.poll() is not None, "the first driver at work")
        second = live_pipeline.spawn(defect=defect)
        with ended(second):
            wait_until(lambda: "Waiting." in live_pipeline.log(), "the second driver to wait")
            first.kill()
            first.wait()
            latest = max(log.renewals(stage, 1)[-1] for stage in Stage)
            wait_until(
                lambda: (
                    all(log.renewals(stage, 2) for stage in Stage)
                    or live_pipeline.catalog.now() > latest + bound_seconds
                ),
                "the leases to be taken over",
            )
            for stage in Stage:
                taken = log.renewals(stage, 2)
                assert taken, f"{stage}: nobody followed the dead driver in {bound_seconds} s"
                assert taken[0] - log.renewals(stage, 1)[-1] <= bound_seconds
            live_pipeline.send(EVENTS[30:])
            wait_until(lambda: len(live_pipeline.rows()) >= len(EVENTS), "the second driver to go on")
            second.send_signal(signal.SIGTERM)
            assert second.wait(timeout=90) == 0, live_pipeline.log()[-2000:]
    live_pipeline.assert_exact()


@pytest.mark.scenario("dead driver is followed in time")
def test_a_driver_killed_on_another_machine_is_followed_when_its_lease_has_run_out(impatient_pipeline):
    be_followed(impatient_pipeline)


@pytest.mark.scenario("dead driver is followed in time")
def test_a_driver_is_followed_within_half_a_minute_by_default(make_pipeline):
    live_pipeline = make_pipeline()
    del live_pipeline.document["lease"]
    assert live_pipeline.pipeline.lease == 30
    be_followed(live_pipeline)


@pytest.mark.defect("dead driver is followed in time")
def test_a_lease_that_never_runs_out_is_noticed(impatient_pipeline):
    with pytest.raises(AssertionError, match="nobody followed the dead driver"):
        be_followed(impatient_pipeline, defect="leases never run out")
