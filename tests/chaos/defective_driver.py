"""The command line for tests, with defects put in where DRIVER_DEFECT names some (commas between them).

Each function below is one defect: it changes the product in this process alone, before the command starts. What has to
reach Spark's workers is a function inside of a function, for those travel by value.
"""

from __future__ import annotations

import os
from dataclasses import replace

from oncehouse.cli.app import main
from oncehouse.ledger import catalog, epochs, leases, registering, segments
from oncehouse.ledger.records import Stage
from oncehouse.pipeline import compact, deciding, stream


def settle_offsets_first() -> None:
    """Offsets are written down before the rows that were read from them, in a transaction of their own."""
    settle, advance = stream.settle, registering._advance

    def settle_late(spark, pipeline, ledger, token, read, given, *, small):
        epoch = epochs.next_epoch(ledger)

        def run(connection):
            for span in given.ranges:
                advance(connection, ledger, span, given.topic_ids[span.topic], epoch)

        ledger.write(Stage.INGEST, token, run)
        return settle(spark, pipeline, ledger, token, read, given, small=small)

    stream.settle = settle_late
    registering._advance = lambda *_: None


def replace_segments_first() -> None:
    """Small segments leave the key index before the one that they were merged into is in it."""
    merge, run_tasks, put_in_place = compact.compact, compact.run_tasks, segments.replace_segments

    def merge_late(spark, pipeline, ledger, token):
        def run_late(spark, task, plans):
            inputs = {file for plan in plans for file in plan.inputs}
            old = [found.segment for found in segments.list_segments(ledger) if found.file in inputs]
            put_in_place(ledger, token, old=old, new=[])
            return run_tasks(spark, task, plans)

        compact.run_tasks = run_late
        segments.replace_segments = lambda *given, old, new: put_in_place(*given, old=[], new=new)
        return merge(spark, pipeline, ledger, token)

    deciding.compact = merge_late


def ignore_fencing() -> None:
    """Whoever once had a lease writes on, whatever its token."""
    right = leases.renew
    catalog.Catalog._fence = lambda *_: None

    def renew_whatever_the_token(ledger, lease, *, lease_seconds):
        for known in leases.list_leases(ledger):
            if known.stage is lease.stage:
                right(ledger, replace(lease, token=known.token), lease_seconds=lease_seconds)

    leases.renew = renew_whatever_the_token


DEFECTS = {
    "offsets first": settle_offsets_first,
    "segments first": replace_segments_first,
    "no fencing": ignore_fencing,
}

if __name__ == "__main__":
    for name in os.environ["DRIVER_DEFECT"].split(","):
        DEFECTS[name]()
    main()
