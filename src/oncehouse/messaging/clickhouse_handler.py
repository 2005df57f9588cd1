"""A handler for the batch consumer that writes the rows of a batch to ClickHouse as one repeatable INSERT.

One batch is one block under the batch's own token, so a repeated batch adds nothing to the table and its materialized
views, and groups that write to one table do not deduplicate each other's rows. An insert is sent before its deadline or
not at all, and runs once, in a session of its own. Handlers of a table take turns, so that its inserts are bounded, and
before the first insert a handler checks that the table remembers that many tokens. `rows` must return the same rows for
the same batch. Errors are classified for the consumer: those that pass, those of the batch's own rows, and those that
affect all batches.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from pydantic import SecretStr, TypeAdapter, ValidationError

from oncehouse.clickhouse.client import Client, connect, failure_of
from oncehouse.clickhouse.error_codes import VALUES, ErrorCode
from oncehouse.clickhouse.errors import FailureKind
from oncehouse.clickhouse.identifiers import split_table
from oncehouse.clickhouse.insert.block_counts import BlockCount, read_block_count
from oncehouse.clickhouse.insert.deadline import SEND_WITHIN_SECONDS, Deadline, read_moment
from oncehouse.clickhouse.insert.dedup_window import WindowNeeds
from oncehouse.clickhouse.insert.repeatable_block import encode_block, repeatable_settings
from oncehouse.clickhouse.insert.session_fence import explain_session, make_open_settings, session_settings
from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.clickhouse.preflight.requirements import Needs
from oncehouse.clickhouse.preflight.table import check_window
from oncehouse.clickhouse.preflight.views import check_views, read_views
from oncehouse.clickhouse.table_info import TableFacts, describe_table
from oncehouse.config.field_types import Seconds
from oncehouse.config.pipeline import ClickHouse
from oncehouse.errors import ConfigurationError, OncehouseError, PermanentError, TransientError
from oncehouse.messaging.insert_turns import InsertTurns, turns_of
from oncehouse.messaging.repeated_insert import SentInsert, TokenForgottenError, require_remembered
from oncehouse.messaging.sent_batches import SentBatches

Rows: TypeAlias = "pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]] | bytes"
"""Columns, objects, or objects encoded as JSON, one per line."""

_TOO_LARGE = frozenset({
    ErrorCode.TOO_MANY_ROWS,
    ErrorCode.TOO_MANY_BYTES,
    ErrorCode.TOO_MANY_ROWS_OR_BYTES,
    ErrorCode.TOO_MANY_PARTITIONS,
    ErrorCode.TOO_MANY_PARTS,  # as a refusal: the block itself spreads over too many partitions
})  # fmt: skip
# ClickHouse adds this to errors of a materialized view, which occur after the table itself was written.
_IN_A_VIEW = "while pushing to view"
_LINE_SETTINGS = {
    # Read by several threads, the lines would become several blocks.
    "input_format_parallel_parsing": 0,
    "input_format_skip_unknown_fields": 0,
    "date_time_input_format": "best_effort",
}


class TokenBatch(Protocol):
    """What the handler needs of a batch."""

    @property
    def token(self) -> str: ...


class ClickHouseHandler:
    """`consumer.batch("events")(ClickHouseHandler(url=…, table=…, rows=…))`."""

    def __init__(
        self,
        *,
        url: str,
        table: str,
        rows: Callable[[Any], Rows],
        user: str = "default",
        password: str | SecretStr = "",
        verify_tls: bool = True,
        ca_file: str | None = None,
        insert_timeout: str | float = "5m",
        retry_horizon: str | float = "5m",
        inserts_per_second: float = 10.0,
        processes: int = 1,
        insert_sessions: bool = True,
    ) -> None:
        """`rows` returns a batch's rows: a pyarrow Table, a list of dicts, or bytes with one JSON object per line.

        An inserted batch may be repeated within `retry_horizon`, after a crash or a lost answer. Into the table go at
        most `inserts_per_second`, and it must remember that many tokens; each of the `processes` that insert into it
        keeps to its share, with all of its handlers and partitions. Set `insert_sessions` to False behind a load
        balancer that sends the requests of one client to different servers.
        """
        try:
            config = ClickHouse(
                url=url,
                user=user,
                password=password if isinstance(password, SecretStr) else SecretStr(password),
                verify_tls=verify_tls,
                ca_file=ca_file,
                insert_timeout=insert_timeout,
                insert_sessions=insert_sessions,
            )
            horizon = TypeAdapter(Seconds).validate_python(retry_horizon)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "retry_horizon"
            raise ConfigurationError(
                f"ClickHouseHandler: {where}: {first['msg'].removeprefix('Value error, ')}"
            ) from None
        if not 0 < inserts_per_second < math.inf:
            raise ConfigurationError(
                "ClickHouseHandler: inserts_per_second must be a number that is more than 0"
            )
        if not isinstance(processes, int) or processes < 1:
            raise ConfigurationError("ClickHouseHandler: processes must be a whole number from 1")
        self.client = connect(config, check_command=None)
        self.table = table
        self._rows = rows
        self._window = WindowNeeds(
            min_interval_seconds=1 / inserts_per_second,
            retry_horizon_seconds=config.insert_timeout + horizon,
        )
        self._send_within = min(SEND_WITHIN_SECONDS, horizon)
        self._interval_seconds = processes / inserts_per_second
        self._turns = self._join_turns()
        self._facts: TableFacts | None = None
        self._sent = SentBatches()

    def _join_turns(self) -> InsertTurns:
        return turns_of(self.client.address, self._full_name, self._interval_seconds)

    @property
    def _full_name(self) -> str:
        named = split_table(self.table)
        return f"{named.database or self.client.database}.{named.table}"

    def __getstate__(self) -> dict[str, Any]:
        own: dict[str, Any] = {"_turns": None, "_sent": None}
        return {name: own.get(name, value) for name, value in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._turns = self._join_turns()
        self._sent = SentBatches()

    def __call__(self, batch: TokenBatch) -> None:
        if self._facts is None:
            self.check()
        # From here on, so that one who stands still with the batch in hand does not send it when others have.
        deadline = Deadline(began=read_moment(), seconds=self._send_within)
        rows = self._rows(batch)
        # A consumer's own batch may name its group there: another group's rows are not this one's repeat.
        token: str = getattr(batch, "insert_token", batch.token)
        if not _is_empty(rows):
            self._take_turn(deadline, token)
        # In a worker process the consumer's own knows of earlier attempts, wherever they were.
        sent = getattr(batch, "sent", None) or self._sent
        key = f"{self.client.address} {self._full_name} {token}"
        sent_before = sent.find(key)

        def open_session(token: str) -> Mapping[str, Any]:
            settings, count = _open(self.client, self.table, token, self._facts)
            if sent_before is None:
                sent.keep(key, SentInsert(count=count, began=read_moment()))
            else:
                require_remembered(self.client, self.table, token, sent_before, count)
            return settings

        try:
            send_rows(
                self.client, self.table, rows, token=token, deadline=deadline, open_session=open_session
            )
        except TokenForgottenError:
            raise
        except OncehouseError as error:
            if sent_before is None and not failure_of(error).outcome_unknown:
                sent.drop(key)
            raise classify_error(error, f"{self.table}: batch {token}") from error
        sent.drop(key)

    def _take_turn(self, deadline: Deadline, token: str) -> None:
        if not self._turns.wait(deadline.seconds - deadline.elapsed(read_moment())):
            raise TransientError(
                f"{self.table}: batch {token}: its turn would come after {deadline.seconds:g} s, because this process "
                f"inserts once each {self._turns.interval_seconds:g} s at most. Give larger batches or a smaller "
                "concurrency, or raise inserts_per_second, for which the table must remember more tokens"
            )

    def check(self) -> None:
        """Refuse a table that would take a repeated batch twice. Done before the first insert; may be asked earlier."""
        facts = describe_table(self.client, self.table)
        if facts is None:
            raise ConfigurationError(
                f"{self.table} does not exist at {self.client.address}, or the user may not see it; create it first"
            )
        if not facts.is_merge_tree:
            raise ConfigurationError(
                f"{self.table}: the engine {facts.engine} takes a repeated batch twice; name a table of the MergeTree "
                "family, for a Distributed table the one behind it"
            )
        needs = Needs(table=self.table, columns={}, batch_column="", id_column=None, window=self._window)
        findings = [
            *check_window(facts, self._window, table=self.table),
            *check_views(read_views(self.client, facts), needs),
        ]
        wrong = [found for found in findings if found.level is Level.ERROR]
        if wrong:
            listed = "\n".join(f"{found.where}: {found.what}; {found.advice}" for found in wrong)
            raise ConfigurationError(f"a batch that comes again would be taken twice.\n{listed}")
        self._facts = facts


def _is_empty(rows: Rows) -> bool:
    match rows:
        case pa.Table() | pa.RecordBatch():
            return bool(rows.num_rows == 0)
        case bytes():
            return not rows.strip()
        case _:
            return not rows


def send_rows(
    client: Client,
    table: str,
    rows: Rows,
    *,
    token: str,
    deadline: Deadline | None = None,
    open_session: Callable[[str], Mapping[str, Any]] | None = None,
) -> None:
    """One INSERT of one block under the token; nothing at all for no rows."""
    deadline = deadline or Deadline(began=read_moment(), seconds=SEND_WITHIN_SECONDS)
    opening = open_session or (lambda token: _open(client, table, token)[0])
    try:
        match rows:
            case pa.Table() | pa.RecordBatch():
                if (block := _as_block(rows)) is not None:
                    names, stream = tuple(block.schema.names), encode_block(block)
                    client.insert_arrow(table, names, stream, opening(token), deadline)
            case bytes():
                if rows.strip():
                    settings = {**opening(token), **_LINE_SETTINGS}
                    client.insert_lines(table, pa.py_buffer(rows), settings, deadline)
            case _:
                lines = b"\n".join(_encode_row(row) for row in rows)
                if lines:
                    settings = {**opening(token), **_LINE_SETTINGS}
                    client.insert_lines(table, pa.py_buffer(lines), settings, deadline)
    except OncehouseError as error:
        raise explain_session(error) from error.__cause__


def _open(
    client: Client, table: str, token: str, facts: TableFacts | None = None
) -> tuple[Mapping[str, Any], BlockCount | None]:
    """Open a session for the batch, and what its INSERT is sent with to need it.

    All who send the batch mean the same session, which the first INSERT that runs in it uses up. An earlier one that
    comes late finds none; one that is still arriving holds it, and then this fails, to be tried again. With the facts
    of the table, the same request counts its blocks.
    """
    settings = repeatable_settings(client, token, f"oncehouse-{uuid.uuid4()}")
    if not client.config.insert_sessions:
        return settings, None if facts is None else read_block_count(client, table, facts)
    session = session_of(table, token)
    count = read_block_count(client, table, facts, make_open_settings(session))
    return {**settings, **session_settings(session)}, count


def session_of(table: str, token: str) -> str:
    return f"oncehouse {table} {token}"


def classify_error(error: OncehouseError, where: str) -> OncehouseError:
    """What the consumer should do about a failed insert, by the class of the error.

    TransientError: the same batch again. PermanentError: the rows are at fault and none was written, so find the one.
    ConfigurationError: no batch would pass, or rows of this one may be in the table already: its halves would have
    tokens that the table does not know. So stop, in place of making dead letters of all or doubling rows.
    """
    failure = failure_of(error)
    message = f"{where}: {error}"
    of_rows = failure.code is None or failure.code in VALUES | _TOO_LARGE
    match failure.kind:
        case FailureKind.PERMANENT if _IN_A_VIEW in str(error):
            return ConfigurationError(
                f"{message} The table itself may have taken the rows, so the batch is not taken apart: let the view "
                "take them, or drop it"
            )
        case FailureKind.PERMANENT if of_rows:
            return PermanentError(message)
        case FailureKind.PERMANENT | FailureKind.UNLISTED:
            return ConfigurationError(message)
        case _:
            return type(error)(message)


def _as_block(rows: pa.Table | pa.RecordBatch) -> pa.RecordBatch | None:
    if isinstance(rows, pa.RecordBatch):
        return rows if rows.num_rows else None
    blocks = rows.combine_chunks().to_batches()
    if len(blocks) > 1:
        raise PermanentError("a column of 2 GiB cannot be sent as one block; make batches smaller")
    return blocks[0] if blocks and blocks[0].num_rows else None


def _encode_row(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, default=_encode_json_value, ensure_ascii=False).encode("utf-8", "surrogateescape")


def _encode_json_value(value: object) -> object:
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal() | uuid.UUID():
            return str(value)
        case bytes():
            return value.decode("utf-8", "surrogateescape")
        case _:
            raise TypeError(f"a {type(value).__name__} cannot be written as JSON; give text or a number")
