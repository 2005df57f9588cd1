"""`oncehouse outbox trace`: where a message is, from its row to ClickHouse, as far as it can be seen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from oncehouse.cli.arguments import DEFAULT_MESSAGING_FILE, AsJson, MessagingFile
from oncehouse.cli.messaging.outbox_trace_text import show_trace
from oncehouse.cli.output import show_json
from oncehouse.cli.pager import paged
from oncehouse.cli.pipeline.dead_letter_options import parse_time
from oncehouse.common.json_documents import Answer, Inlined
from oncehouse.errors import ConfigurationError, TransientError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncehouse.config.pipeline import Pipeline
    from oncehouse.messaging.outbox.kafka_search import Scan
    from oncehouse.messaging.outbox.lookup import OutboxRowView
    from oncehouse.messaging.settings import MessagingSettings
    from oncehouse.monitoring.message_trace import MessageTrace, PipelineTrace
    from oncehouse.monitoring.unavailable import NoAnswer


@dataclass(frozen=True, kw_only=True)
class TracedMessage(Answer, of=("outbox trace",)):
    trace: Inlined[MessageTrace]


@paged()
def trace(
    message: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the message, as `outbox.add` returned it.")
    ],
    file: MessagingFile = DEFAULT_MESSAGING_FILE,
    *,
    pipeline: Annotated[
        Path | None, typer.Option("--pipeline", metavar="FILE", help="The pipeline that reads its topic.")
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", help="Topic to search when its row is deleted; may be repeated."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            help="Search Kafka from this time on, such as 2026-11-15T12:00 (UTC). Default: when it was written.",
        ),
    ] = None,
    all_copies: Annotated[
        bool, typer.Option("--all", help="Continue after the first position: it may have been sent again.")
    ] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0, help="Search Kafka for at most this long.")
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Show where a message is: its row, its place in Kafka, what the ledger made of it, its rows in ClickHouse."""
    from oncehouse.config.file_loader import load_pipeline
    from oncehouse.messaging.settings import load_messaging
    from oncehouse.monitoring.message_trace import MessageTrace, find_places

    message_id, begin = _read_id(message), parse_time(since)
    settings = load_messaging(file)
    reader = None if pipeline is None else load_pipeline(pipeline)
    row = _find_row(settings, message_id)
    source = None if reader is None else reader.source.kafka
    topics = tuple(topic or ()) or (() if source is None else source.topics)

    def scan(topics: Sequence[str], since: float) -> Scan:
        return _scan(settings, message_id, topics, since, all_copies=all_copies, seconds=seconds)

    places = find_places(row, message_id, topics=topics, since=begin, scan=scan)
    found = MessageTrace(
        message_id=str(message_id), outbox=row, kafka=places, pipeline=_trace_pipeline(reader, places)
    )
    _print_trace(found, as_json=as_json)


def _print_trace(found: MessageTrace, *, as_json: bool) -> None:
    if as_json:
        show_json(TracedMessage(trace=found))
    else:
        show_trace(found)
    if found.unreachable:
        raise typer.Exit(TransientError.exit_code)


def _read_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is not the id of a message; it looks like 019a8b7c-1d2e-7f30-8a4b-5c6d7e8f9012"
        ) from None


def _find_row(settings: MessagingSettings, message_id: UUID) -> OutboxRowView | NoAnswer:
    from oncehouse.cli.open_ledger import may_exist
    from oncehouse.messaging.outbox.lookup import load_row_view
    from oncehouse.monitoring.message_trace import ABSENT_ROW
    from oncehouse.monitoring.unavailable import NoAnswer, ask

    if settings.database is None or not may_exist(settings.require_database()):
        why = (
            "not asked: the messaging file names no database" if settings.database is None else "no such file"
        )
        return NoAnswer(why=why, failed=settings.database is not None)
    row = ask(lambda: load_row_view(settings.require_database(), settings.outbox.table, message_id))
    return ABSENT_ROW if row is None else row


def _scan(
    settings: MessagingSettings,
    message_id: UUID,
    topics: Sequence[str],
    since: float,
    *,
    all_copies: bool,
    seconds: float,
) -> Scan:
    from oncehouse.messaging.outbox.kafka_search import locate

    kafka = settings.require_kafka()
    return locate(
        kafka.bootstrap_servers,
        kafka.options,
        message_id=str(message_id),
        topics=topics,
        since=since,
        all_copies=all_copies,
        max_seconds=seconds,
    )


def _trace_pipeline(
    pipeline: Pipeline | None, places: Scan | NoAnswer
) -> tuple[PipelineTrace, ...] | NoAnswer:
    from oncehouse.cli.open_ledger import open_ledger
    from oncehouse.monitoring.message_trace import trace_places
    from oncehouse.monitoring.unavailable import NoAnswer, ask

    if pipeline is None:
        return NoAnswer(why="not asked: name the pipeline that reads its topic with --pipeline", failed=False)
    if isinstance(places, NoAnswer) or not places.places:
        return NoAnswer(why="not asked: its place in Kafka is not known", failed=False)

    def read_traces() -> tuple[PipelineTrace, ...]:
        with open_ledger(pipeline) as catalog:
            return trace_places(pipeline, catalog, places.places)

    return ask(read_traces)
