"""`oncehouse outbox`: make its table, take its messages to Kafka, look how it stands and where a message is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from oncehouse.cli.arguments import DEFAULT_MESSAGING_FILE, AsJson, MessagingFile
from oncehouse.cli.messaging.outbox_relay import relay
from oncehouse.cli.messaging.outbox_status import drop, retry, status
from oncehouse.cli.messaging.outbox_trace import trace
from oncehouse.cli.output import say, show_json
from oncehouse.common.json_documents import Answer

app = typer.Typer(
    no_args_is_help=True, help="Outbox: messages that a transaction hands over, and their way to Kafka."
)
app.command()(relay)
app.command()(status)
app.command()(retry)
app.command()(drop)
app.command()(trace)


@dataclass(frozen=True, kw_only=True)
class OutboxStatements(Answer, of=("outbox init",)):
    table: str
    statements: tuple[str, ...]
    outcome: str


@app.command()
def init(
    file: MessagingFile = DEFAULT_MESSAGING_FILE,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Run the statements. What exists is kept.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the statements that make the outbox table and those of its relays; with --yes, run them."""
    from oncehouse.messaging.outbox.create_tables import create_tables, list_statements
    from oncehouse.messaging.settings import load_messaging

    settings = load_messaging(file)
    url, table = settings.require_database(), settings.outbox.table
    statements = list_statements(url, table)
    outcome = "not run"
    if yes:
        outcome = "created" if create_tables(url, table) else "exists already, kept as it is"
    if as_json:
        show_json(OutboxStatements(table=table, statements=statements, outcome=outcome))
        return
    for statement in statements:
        say(f"{statement};\n")
    say(f"-- {table}: {outcome}" if yes else "-- nothing was changed; --yes runs these statements")
