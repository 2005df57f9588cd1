"""What a step does to tables: statements, the insert, putting in place what was built aside. Writes no offsets.

Holds: a range that may be in the table is looked for before it is inserted; a host whose topic was taken over
inserts nothing and puts nothing in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from oncehouse.clickhouse.client import Client, failure_of
from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.clickhouse.insert.deadline import Deadline, read_moment
from oncehouse.clickhouse.insert.send_guard import guard_sends
from oncehouse.common import failpoints
from oncehouse.errors import OncehouseError, PermanentError
from oncehouse.etl.lineage.topic import Template
from oncehouse.etl.state import topic_lease, transitions
from oncehouse.etl.state.backfill_transitions import mark_covered
from oncehouse.etl.state.topic_lease import TopicWorker
from oncehouse.etl.state.transitions import OffsetStore
from oncehouse.etl.steps import table_swap
from oncehouse.etl.steps.destination_check import explain_overflow
from oncehouse.etl.steps.late_row_repair import count_built
from oncehouse.etl.steps.operations import (
    DropStagingTables,
    Exchange,
    Execute,
    Expect,
    FixRange,
    Freeze,
    Insert,
    MarkCovered,
    Operation,
    RangeSize,
    ReplacePartitions,
    WriteJobRange,
    WriteLast,
    WriteNext,
)
from oncehouse.etl.steps.range_presence import BegunRange, Presence, find_presence
from oncehouse.etl.steps.range_sizing import RangeSizing
from oncehouse.etl.steps.source_rows import insert_range
from oncehouse.etl.steps.stale_queries import make_query_id
from oncehouse.etl.steps.step_planner import TopicStep

_SEND_SHARE = 0.5
"""Share of the lease within which an insert leaves after a sign of life; the rest is for its way."""
_LATE_ADVICE = "the range runs again. If this comes often, the process or its machine stands still for long."


@dataclass(frozen=True, kw_only=True)
class TableExecutor:
    client: Client
    store: OffsetStore
    worker: TopicWorker
    sizing: RangeSizing

    def carry_out(self, operation: Operation, step: TopicStep) -> int | None:
        """Of what puts a table or partitions in place: how many rows those have."""
        match operation:
            case Insert():
                self._insert(operation, step)
            case Execute():
                self._execute(operation)
            case DropStagingTables():
                self._check_mine(step)
                table_swap.drop_staging_tables(self.client, operation.dst)
            case Exchange():
                self._check_mine(step)
                failpoints.reach("etl-before-swap")
                return table_swap.exchange(self.client, operation)
            case ReplacePartitions():
                self._check_mine(step)
                failpoints.reach("etl-before-swap")
                return table_swap.replace_partitions(self.client, operation)
            case MarkCovered():
                mark_covered(self.store, self.worker, step.seen, operation.after, operation.upto)
            case WriteNext() | WriteJobRange() | Freeze() | RangeSize() | Expect() | FixRange() | WriteLast():
                raise AssertionError(f"{operation} changes no tables")
        return None

    def _execute(self, operation: Execute) -> None:
        try:
            self.client.command(operation.sql, operation.parameters)
        except OncehouseError as error:
            if not operation.label:
                raise
            raise type(error)(f"{operation.label} failed: {error}") from error.__cause__

    def _check_mine(self, step: TopicStep) -> None:
        """A host that slept must not drop or put in place what another one is building by now."""
        row = self.store.read_all().offsets.get(step.topic.topic)
        topic_lease.check_held(row or topic_lease.new_offset(step.topic.topic), self.worker)

    def _insert(self, operation: Insert, step: TopicStep) -> None:
        if self._is_there(step, operation.token):
            return
        known = {name: value for name, value in operation.settings.items() if self.client.knows_setting(name)}
        settings = {**known, "query_id": make_query_id(step.topic)}

        def send(writer: Client, sql: str) -> None:
            with self._guard_insert(step):
                writer.command(sql, operation.parameters, settings)

        try:
            insert_range(
                self.client,
                step.topic,
                step.prepared.transform,
                operation,
                span=step.span,
                send=send,
            )
        except OncehouseError as error:
            if failure_of(error).code == ErrorCode.TOO_MANY_PARTS and "partitions for single INSERT" in str(
                error
            ):
                raise PermanentError(
                    explain_overflow(step.topic, step.prepared.destination.narrowest)
                ) from error
            raise
        failpoints.reach("etl-after-insert")

    @contextmanager
    def _guard_insert(self, step: TopicStep) -> Iterator[None]:
        """Inside, an insert that cannot itself look whether the topic is still this host's leaves in time or not at
        all: another host must not have taken the topic over by then, however long this one stood still."""
        if step.prepared.transform.guard_table is not None:
            yield
            return
        began = read_moment()
        transitions.beat(self.store, self.worker, step.topic.topic)
        failpoints.reach("etl-before-insert")
        deadline = Deadline(began=began, seconds=self.worker.lease_seconds * _SEND_SHARE)
        with guard_sends(deadline, in_flight_seconds=0.0, advice=_LATE_ADVICE):
            yield

    def _is_there(self, step: TopicStep, token: str) -> bool:
        """The rows of a range that was begun before are in the table, which may have forgotten that they are."""
        if step.topic.template != Template.STEP or step.before is None:
            return False
        frozen = next((one for one in step.operations if isinstance(one, Freeze)), None)
        # Before the offsets' clock, so that the difference of both can only make the range look older.
        clock = self.client.now()
        age_seconds = (self.store.read_all().now_ms - step.before.since_ms) / 1000
        presence = find_presence(
            self.client,
            step.topic,
            BegunRange(
                opened=step.before,
                token=token,
                reached=step.seen.reached,
                age_seconds=age_seconds,
                began=clock - max(0.0, age_seconds),
            ),
            count_expected=lambda: self.sizing.count_output(
                step.topic, step.prepared.transform, step.span, frozen
            ),
            count_found=partial(count_built, self.client, step.topic, frozen) if frozen else None,
        )
        return presence is Presence.THERE
