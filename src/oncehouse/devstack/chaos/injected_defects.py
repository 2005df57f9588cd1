"""Defects to be put into a process of the command line, one at a time, to show that a scenario can fail.

Each function changes the product in this process alone, before the command starts; the product itself knows none of
them. What has to reach Spark's workers is a function inside of a function, for those travel by value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from oncehouse.ledger.catalog import batches, database, epochs, leases, registration
from oncehouse.ledger.models import AttemptOutcome, BatchStatus
from oncehouse.pipeline.ingest import kafka_source
from oncehouse.pipeline.load import insert_task

_SKIPPED = 2


def leave_token_out() -> None:
    """Inserts carry no token, and no check finds that the batch is there already."""
    _put(insert_task, "send_batch", without_token(insert_task.send_batch))


def without_token(send: Callable[..., Any]) -> Callable[..., Any]:
    """In the place of `loader.send_batch`, which travels to Spark's workers."""

    def send_without_token(plan: Any) -> Any:
        from dataclasses import replace

        from oncehouse.clickhouse.insert import repeatable_block

        right = repeatable_block.insert_settings
        off: dict[str, str | int] = {"insert_deduplicate": 0, "deduplicate_insert": "disable"}
        repeatable_block.insert_settings = lambda batch_id: right(batch_id) | off
        try:
            return send(replace(plan, request=replace(plan.request, outcome_unknown=False, session=None)))
        finally:
            repeatable_block.insert_settings = right

    return send_without_token


def skip_offsets() -> None:
    """A stream that goes on where the ledger ends passes over records, and it is not checked that ranges join."""
    right = kafka_source.starting_positions

    def start_too_late(facts: Any, positions: Any, earliest: Any) -> Any:
        found = right(facts, positions, earliest)
        return {place: offset + _SKIPPED * (place in positions) for place, offset in found.items()}

    _put(kafka_source, "starting_positions", start_too_late)
    _put(registration, "_advance", register_anywhere())


def register_anywhere() -> Callable[..., None]:
    """In the place of `registering._advance`: a range of offsets is taken for the next one, wherever it starts."""
    advance, read_positions = registration._advance, epochs.read_positions  # noqa: SLF001 - what is to be broken

    def advance_anyhow(connection: Any, ledger: Any, span: Any, *more: Any) -> None:
        start = read_positions(ledger).get((span.topic, span.partition), span.start)
        advance(connection, ledger, replace(span, start=start), *more)

    return advance_anyhow


def forget_unfinished() -> None:
    """What another process has left behind, parts without a batch and batches under way, is not taken up."""
    for name in ("open_parts", "list_batches", "waiting_batches"):
        _put(batches, name, _without_first(getattr(batches, name)))


def _without_first(right: Callable[..., Any]) -> Callable[..., Any]:
    """A list without what was on it when it was first asked for."""
    known: list[set[str]] = []

    def read_without_first(*given: Any, **which: Any) -> Any:
        found = right(*given, **which)
        if not known:
            known.append({_name(one) for one in found})
        return tuple(one for one in found if _name(one) not in known[0])

    return read_without_first


def _name(one: Any) -> str:
    return str(getattr(one, "batch_id", None) or getattr(one, "part", ""))


def believe_failures() -> None:
    """An insert that failed, or whose end is unknown, counts as done."""
    right = insert_task.classify_outcome

    def classify_kindly(outcome: Any, **facts: Any) -> insert_task.AttemptResult:
        result = right(outcome, **facts)
        if result.status is BatchStatus.RETRY:
            return insert_task.AttemptResult(
                status=BatchStatus.IN_CLICKHOUSE, outcome=AttemptOutcome.INSERTED
            )
        return result

    _put(insert_task, "classify_outcome", classify_kindly)


def ignore_fencing() -> None:
    """Every process that asks gets the lease, and no token is checked."""
    acquire = leases.acquire

    def take(ledger: Any, stage: Any, **which: Any) -> Any:
        for known in leases.list_leases(ledger):
            if known.stage is stage:
                leases.release(ledger, known)
        return acquire(ledger, stage, **which)

    _put(leases, "acquire", take)
    _put(leases, "renew", lambda *_given, **_which: None)
    _put(database.Catalog, "_fence", lambda *_given: 0)


def _put(holder: object, name: str, defect: object) -> None:
    getattr(holder, name)  # what is not there would be put there, and no code would use it
    setattr(holder, name, defect)


DEFECTS: dict[str, Callable[[], None]] = {
    "token left out": leave_token_out,
    "offsets skipped": skip_offsets,
    "unfinished forgotten": forget_unfinished,
    "failures believed": believe_failures,
    "fencing ignored": ignore_fencing,
}


def starter(name: str) -> tuple[str, ...]:
    """How the command line is started with a defect in it."""
    program = "import sys; from oncehouse.devstack.chaos.injected_defects import DEFECTS; DEFECTS[sys.argv.pop(1)]()"
    return sys.executable, "-c", f"{program}; from oncehouse.cli.app import main; main()", name
