"""`oncehouse cdc`: follow tables of PostgreSQL through Debezium, and watch how that fares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import AsJson
from oncehouse.cli.output import say, show_json, show_table
from oncehouse.cli.pager import paged
from oncehouse.common.formatting import format_elapsed
from oncehouse.common.json_documents import Answer, Inlined
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehouse.messaging.cdc.apply_connector import ApplyResult
    from oncehouse.messaging.cdc.connector_config import ConnectorTopics
    from oncehouse.messaging.cdc.generate import Draft
    from oncehouse.messaging.cdc.health import CdcStatus
    from oncehouse.messaging.settings import MessagingSettings

PROBLEM_EXIT_CODE = 3
"""Something is not as it should be; `verify` ends with the same."""

app = typer.Typer(no_args_is_help=True, help="Changes of a PostgreSQL database, through Debezium.")

MessagingOption = Annotated[
    Path, typer.Option("--file", "-f", metavar="FILE", help="Brokers, database and Kafka Connect.")
]
Prefix = Annotated[str, typer.Option("--prefix", help="Prefix of the topics; name of connector and slot.")]
Folder = Annotated[Path, typer.Option("--folder", help="Where the files go.")]
Partitions = Annotated[int, typer.Option("--partitions", min=1, help="Of created topics.")]
Password = Annotated[
    str,
    typer.Option("--password", help="Where Kafka Connect finds the database's password, if there is one."),
]
WithoutFull = Annotated[
    bool, typer.Option("--without-full", help="Also follow tables without REPLICA IDENTITY FULL.")
]
_DEFAULT = Path("messaging.yaml")
PASSWORD = "${env:CDC_DATABASE_PASSWORD}"  # noqa: S105 - a reference, no password


@dataclass(frozen=True, kw_only=True)
class CdcFiles(Answer, of=("cdc init",)):
    files: list[Path]
    tables: dict[str, str]
    """The command that makes each table."""
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AppliedConnectors(Answer, of=("cdc apply",)):
    connectors: dict[str, ApplyResult]


@dataclass(frozen=True, kw_only=True)
class CdcFigures(Answer, of=("cdc status",)):
    status: Inlined[CdcStatus]


@app.command()
def init(
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE", help="Tables to follow: orders, sales.orders.")
    ] = None,
    *,
    prefix: Prefix,
    outbox: Annotated[
        str | None, typer.Option("--outbox", metavar="TABLE", help="Follow this outbox table instead.")
    ] = None,
    folder: Folder = Path(),
    clickhouse: Annotated[
        str, typer.Option("--clickhouse", help="ClickHouse's HTTP address, for the pipelines.")
    ] = "http://localhost:8123",
    partitions: Partitions = 4,
    password: Password = PASSWORD,
    without_full: WithoutFull = False,
    file: MessagingOption = _DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Write a connector's file, and a pipeline's for each TABLE. Existing files are kept."""
    from oncehouse.messaging.cdc.connector_config import ConnectorTopics
    from oncehouse.messaging.settings import load_messaging

    if bool(tables) == (outbox is not None):
        raise ConfigurationError("name the tables to follow, or an outbox table with --outbox")
    draft = _draft(
        load_messaging(file),
        tables=tables or [],
        outbox=outbox,
        prefix=prefix,
        clickhouse=clickhouse,
        topics=ConnectorTopics(partitions=partitions),
        password=password,
        without_full=without_full,
    )
    written = write_draft(draft, folder)
    if as_json:
        show_json(CdcFiles(files=written, tables=_commands(draft, folder), warnings=draft.warnings))
        return
    _print_draft(draft, folder, written, password)


def _draft(
    settings: MessagingSettings,
    *,
    tables: list[str],
    outbox: str | None,
    prefix: str,
    clickhouse: str,
    topics: ConnectorTopics,
    password: str,
    without_full: bool,
) -> Draft:
    from oncehouse.config.field_types import check_http_url
    from oncehouse.messaging.cdc.connector_config import check_prefix
    from oncehouse.messaging.cdc.generate import ServerAddresses, draft_outbox, draft_tables
    from oncehouse.messaging.cdc.source_database import describe_database, open_source

    check_prefix(prefix)
    try:
        places = ServerAddresses(
            bootstrap_servers=settings.require_kafka().bootstrap_servers,
            clickhouse_url=check_http_url(clickhouse),
        )
    except ValueError as error:
        raise ConfigurationError(f"--clickhouse: {error}") from None
    with open_source(settings.require_database(), "looking at the tables") as connection:
        database = describe_database(connection, password)
        if outbox is not None:
            return draft_outbox(connection, outbox, prefix=prefix, database=database, topics=topics)
        return draft_tables(
            connection,
            tables,
            prefix=prefix,
            database=database,
            topics=topics,
            places=places,
            without_full=without_full,
        )


def write_draft(draft: Draft, folder: Path) -> list[Path]:
    """All of it, or nothing where one of the files is there already."""
    from oncehouse.cli.init import write_new

    paths = [folder / name for name in draft.files]
    existing = [str(path) for path in paths if path.exists()]
    if existing:
        raise ConfigurationError(
            f"{', '.join(existing)} exist already and nothing was written; name another --folder or remove them first"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{folder}: cannot be made: {error.strerror}") from None
    for path, text in zip(paths, draft.files.values(), strict=True):
        write_new(path, text)
    return paths


def _commands(draft: Draft, folder: Path) -> dict[str, str]:
    return {
        pipeline.name: pipeline.create_command(str(folder / f"{pipeline.name}.yaml"))
        for pipeline in draft.pipelines
    }


def _print_draft(draft: Draft, folder: Path, written: list[Path], password: str) -> None:
    say("wrote " + "\n      ".join(str(path) for path in written))
    for warning in draft.warnings:
        say(f"warning: {warning}")
    connector = written[0]
    if password in draft.files[connector.name]:
        say(f"Kafka Connect takes the database's password from {password}: make it known to its workers")
    say("next:")
    for command in _commands(draft, folder).values():
        say(f"  {command}")
    say(f"  oncehouse cdc apply {connector}")
    for pipeline in draft.pipelines:
        say(f"  oncehouse run {folder / pipeline.name}.yaml")


@app.command()
def apply(
    connectors: Annotated[list[Path], typer.Argument(metavar="CONNECTOR", help="Files of `cdc init`.")],
    *,
    wait: Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait until it runs.")] = 60.0,
    file: MessagingOption = _DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Create connectors in Kafka Connect and wait until they run. Existing ones are kept."""
    from oncehouse.config.file_loader import read_text
    from oncehouse.messaging.cdc.apply_connector import apply_connector, wait_until_running
    from oncehouse.messaging.cdc.connect_client import ConnectClient
    from oncehouse.messaging.cdc.connector_config import holds_plain_password
    from oncehouse.messaging.cdc.generate import parse_connector
    from oncehouse.messaging.settings import load_messaging

    read = [
        parse_connector(read_text(path, absent="`oncehouse cdc init` writes it"), str(path))
        for path in connectors
    ]
    client = ConnectClient(load_messaging(file).cdc)
    outcomes = {}
    for name, config in read:
        outcomes[name] = apply_connector(client, name, config)
        wait_until_running(client, name, timeout_seconds=wait)
        if not as_json:
            say(f"{name}: {outcomes[name]}, running")
        if holds_plain_password(config) and not as_json:
            say(
                f"warning: {name}: database.password is no reference; it is visible in the file and in Connect"
            )
    if as_json:
        show_json(AppliedConnectors(connectors=outcomes))


@app.command()
@paged()
def status(*, file: MessagingOption = _DEFAULT, as_json: AsJson = False) -> None:
    """Show connectors and slots; exit 3 if one does not run, or before the kept log fills the disk."""
    from oncehouse.messaging.cdc.connect_client import ConnectClient
    from oncehouse.messaging.cdc.health import read_status
    from oncehouse.messaging.cdc.source_database import open_source
    from oncehouse.messaging.settings import load_messaging

    settings = load_messaging(file)
    with open_source(settings.require_database(), "looking at the slots") as connection:
        found = read_status(connection, ConnectClient(settings.cdc), settings.cdc)
    if as_json:
        show_json(CdcFigures(status=found))
    else:
        _show_status(found)
    if found.problems:
        raise typer.Exit(PROBLEM_EXIT_CODE)


def _show_status(found: CdcStatus) -> None:
    from oncehouse.common.formatting import format_bytes

    def format_count(count: int | None) -> str:
        return "-" if count is None else format_bytes(count)

    show_table(
        ["connector", "state", "tasks", "slot"],
        [
            [one.name, one.state, ", ".join(task.state for task in one.tasks) or "none", one.slot]
            for one in found.connectors
        ],
        empty="no connectors of PostgreSQL",
    )
    say("")
    show_table(
        ["slot", "read", "not confirmed", "log kept", "room left", "full in"],
        [
            [
                report.slot.name,
                "yes" if report.slot.active else "no",
                format_count(report.slot.lag_bytes),
                format_count(report.slot.kept_bytes),
                format_count(report.room_bytes),
                "-" if report.full_in_seconds is None else format_elapsed(report.full_in_seconds),
            ]
            for report in found.slots
        ],
        empty="no slots",
    )
    for note in found.notes:
        say(f"note: {note}")
    for problem in found.problems:
        say(f"warning: {problem}")
