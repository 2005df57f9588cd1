"""The command line for tests, with defects put in where DRIVER_DEFECT names some (commas between them).

Each function below is one defect, or a circumstance that would be rare otherwise: it changes the product in this
process alone, before the command starts. Functions of this program travel to Spark's workers by value.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import uuid
from dataclasses import replace
from pathlib import Path

from sqlalchemy import update
from task_faults import be_overtaken, lose_executor, lose_machine, stop_before_sending

from oncehouse.cli.app import main
from oncehouse.devstack.chaos.injected_defects import leave_token_out
from oncehouse.errors import LeaseHeldError
from oncehouse.ledger import lease_holder, marks
from oncehouse.ledger.catalog import batches, database, epochs, leases, registration, schema, segments
from oncehouse.ledger.models import BatchStatus, Stage
from oncehouse.pipeline.dedup import index_compaction
from oncehouse.pipeline.ingest import epoch as ingest
from oncehouse.pipeline.load import insert_task
from oncehouse.pipeline.maintenance import file_packs
from oncehouse.pipeline.spark import executors
from oncehouse.pipeline.stages import ingest_stage, kafka_stream, load_stage
from oncehouse.pipeline.stages import kafka_stream as stream
from oncehouse.pipeline.stages import request_only_stage as tending
from oncehouse.pipeline.stages import supervisor as stages

FOLDER = Path(os.environ["DRIVER_FOLDER"])


def settle_offsets_first() -> None:
    """Offsets are written down before the rows that were read from them, in a transaction of their own."""
    settle, advance = kafka_stream.settle, registration._advance

    def settle_late(spark, pipeline, ledger, token, read, given, *, small):
        epoch = epochs.next_epoch(ledger)

        def run(connection):
            for span in given.ranges:
                advance(connection, ledger, span, given.topic_ids[span.topic], epoch)

        ledger.write(Stage.INGEST, token, run)
        return settle(spark, pipeline, ledger, token, read, given, small=small)

    kafka_stream.settle = settle_late
    registration._advance = lambda *_: None


def replace_segments_first() -> None:
    """Small segments leave the key index before the one that they were merged into is in it."""
    merge, run_tasks, put_in_place = (
        index_compaction.compact,
        index_compaction.run_tasks,
        segments.replace_segments,
    )

    def merge_late(spark, pipeline, ledger, token):
        def run_late(spark, task, plans):
            inputs = {file for plan in plans for file in plan.inputs}
            old = [found.segment for found in segments.list_segments(ledger) if found.file in inputs]
            put_in_place(ledger, token, old=old, new=[])
            return run_tasks(spark, task, plans)

        index_compaction.run_tasks = run_late
        segments.replace_segments = lambda *given, old, **more: put_in_place(*given, old=[], **more)
        return merge(spark, pipeline, ledger, token)

    ingest_stage.compact = merge_late


def ignore_fencing() -> None:
    """Whoever once had a lease writes on, whatever its token."""
    right = leases.renew
    database.Catalog._fence = lambda *_: 0

    def renew_whatever_the_token(ledger, lease, *, lease_seconds):
        for known in leases.list_leases(ledger):
            if known.stage is lease.stage:
                right(ledger, replace(lease, token=known.token), lease_seconds=lease_seconds)

    leases.renew = renew_whatever_the_token


def see_no_marks() -> None:
    """Whoever has its lease in the catalog writes on, whatever the marks outside of it say."""
    for module in (stages, stream, tending):
        module.require_current = lambda *_: None
    marks._require_newest_term = lambda *_: None


def take_held_leases() -> None:
    """A lease that somebody holds is shared with them."""
    acquire = leases.acquire

    def share(ledger, stage, *, holder, **which):
        try:
            return acquire(ledger, stage, holder=lease_holder, **which)
        except LeaseHeldError:
            mine = schema.leases.c.stage == stage
            ledger.change(
                lambda connection: connection.execute(
                    update(schema.leases).where(mine).values(holder=lease_holder)
                )
            )
            return next(known for known in leases.list_leases(ledger) if known.stage is stage)

    leases.acquire = share


def wait_for_ever() -> None:
    """A lease that was not given back is never taken over."""
    acquire = leases.acquire

    def take_if_given_back(ledger, stage, **which):
        for known in leases.list_leases(ledger):
            if known.stage is stage and known.expires_at > 0:
                raise LeaseHeldError(f"the stage {stage} is run by {known.holder}.")
        return acquire(ledger, stage, **which)

    leases.acquire = take_if_given_back


def lose_executors() -> None:
    """No defect: the executor of the first read, decide and load task dies when it has done its work."""
    ingest.read_records = lose_executor(ingest.read_records, FOLDER / "read.killed")
    ingest.decide_task = lose_executor(ingest.decide_task, FOLDER / "decide.killed")
    insert_task.send_batch = lose_executor(insert_task.send_batch, FOLDER / "load.killed")


def lose_loading_executor() -> None:
    """No defect: the executor of the first load task dies when its INSERT was answered."""
    insert_task.send_batch = lose_executor(insert_task.send_batch, FOLDER / "load.killed")


def lose_reading_machine() -> None:
    """No defect: the machine of the first read task dies when that has written its files."""
    ingest.read_records = lose_machine(ingest.read_records, FOLDER / "read.killed")


def lose_deciding_machine() -> None:
    """No defect: the machine of the first decide task dies when that has written its files."""
    ingest.decide_task = lose_machine(ingest.decide_task, FOLDER / "decide.killed")


def lose_loading_machine() -> None:
    """No defect: the machine of the first load task dies when its INSERT was answered."""
    insert_task.send_batch = lose_machine(insert_task.send_batch, FOLDER / "load.killed")


def overtake_tasks() -> None:
    """No defect: Spark runs a copy of the first read, decide and load task."""
    ingest.read_records = be_overtaken(ingest.read_records, FOLDER / "read")
    ingest.decide_task = be_overtaken(ingest.decide_task, FOLDER / "decide")
    insert_task.send_batch = be_overtaken(insert_task.send_batch, FOLDER / "load")


def run_elsewhere() -> None:
    """No defect: as if on another machine, so that nobody here can see that the process is dead."""
    lease_holder._machine = lambda: "elsewhere"


def be_impatient() -> None:
    """No defect: a cluster that gives no executors is left after seconds."""
    executors.PATIENCE_SECONDS, executors.REPORT_AFTER_SECONDS = 6.0, 2.0


def pack_soon() -> None:
    """No defect: few small epochs are worth a pack."""
    file_packs.LEAST_EPOCHS = 2


def call_loaded_what_is_left() -> None:
    """Told to stop, the load stage calls all that it has not sent yet loaded, and ends."""
    run = load_stage.LoadStage.run

    def run_and_hurry(self, stop, drain):
        run(self, stop, drain)
        for part in batches.open_parts(self._catalog):
            left = batches.NewBatch(batch_id=str(uuid.uuid4()), table=part.table, parts=(part,))
            batches.create_batches(self._catalog, self._token, [left])
            attempt = batches.start_attempt(self._catalog, self._token, left.batch_id)
            loaded = {"status": BatchStatus.IN_CLICKHOUSE, "outcome": "inserted"}
            batches.finish_attempt(self._catalog, self._token, attempt, **loaded)

    load_stage.LoadStage.run = run_and_hurry


def stop_a_worker() -> None:
    """No defect: the first load task is stopped when its INSERT is about to leave."""
    insert_task.send_batch = stop_before_sending(insert_task.send_batch, FOLDER)


def stop_the_driver() -> None:
    """No defect: the driver is stopped when it has written its first attempt."""
    run = insert_task._run

    def stop_and_run(spark, plan):
        stopped = FOLDER / "stopped"
        if not stopped.exists():
            stopped.write_text(str(os.getpid()), encoding="utf-8")
            os.kill(os.getpid(), signal.SIGSTOP)
        return run(spark, plan)

    insert_task._run = stop_and_run


def be_too_late_soon() -> None:
    """No defect: what has not left in a moment may not leave."""
    insert_task.SEND_WITHIN_SECONDS = 1.5


def never_be_too_late() -> None:
    """An INSERT may leave whenever it comes to it."""
    insert_task.SEND_WITHIN_SECONDS = 1e9


def leave_rights_unexplained() -> None:
    """What the operating system refuses comes from SQLite, in its words."""
    database.database._make_file = lambda path, _: sqlite3.connect(path).execute("PRAGMA user_version")


def refuse_batches_for_rights() -> None:
    """A batch whose files may not be read is parked, as one that ClickHouse refuses."""
    right = insert_task.send_batch

    def send_or_refuse(plan):
        from oncehouse.clickhouse.insert.outcome import Refused, Retryable

        outcome = right(plan)
        if isinstance(outcome, Retryable) and outcome.misconfigured:
            return Refused(message=outcome.message, code=None, seconds=0.0, outcome_unknown=False)
        return outcome

    insert_task.send_batch = send_or_refuse


DEFECTS = {
    "rights unknown": leave_rights_unexplained,
    "rights refuse batches": refuse_batches_for_rights,
    "offsets first": settle_offsets_first,
    "segments first": replace_segments_first,
    "no fencing": ignore_fencing,
    "marks not seen": see_no_marks,
    "leases not asked": take_held_leases,
    "leases never run out": wait_for_ever,
    "no token": leave_token_out,
    "executors die": lose_executors,
    "loading executor dies": lose_loading_executor,
    "reading machine dies": lose_reading_machine,
    "deciding machine dies": lose_deciding_machine,
    "loading machine dies": lose_loading_machine,
    "tasks overtaken": overtake_tasks,
    "elsewhere": run_elsewhere,
    "packs soon": pack_soon,
    "soon impatient": be_impatient,
    "loaded by word": call_loaded_what_is_left,
    "worker stops": stop_a_worker,
    "driver stops": stop_the_driver,
    "soon too late": be_too_late_soon,
    "never too late": never_be_too_late,
}

if __name__ == "__main__":
    for name in os.environ["DRIVER_DEFECT"].split(","):
        DEFECTS[name]()
    main()
