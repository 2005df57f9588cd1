"""`oncehouse replay` and `rebuild-index`: requests that only the holder of the ingest lease can perform.

A command writes its request into the ledger and ends; a running pipeline performs it between epochs, else the
next run does. `oncehouse status` shows what became of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File
from oncehouse.cli.open_ledger import open_ledger
from oncehouse.cli.output import say, show_json
from oncehouse.common.json_documents import Answer
from oncehouse.config.file_loader import load_pipeline
from oncehouse.ledger.models import RequestKind

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline


@dataclass(frozen=True, kw_only=True)
class LeftRequest(Answer, of=("replay", "rebuild-index", "rekey", "dead-letters replay")):
    request: int
    kind: RequestKind
    arguments: dict[str, object]


def replay(
    file: File = DEFAULT_FILE,
    *,
    table: Annotated[str, typer.Option("--table", help="The table to fill, as the pipeline file names it.")],
    as_json: AsJson = False,
) -> None:
    """Fill a table again, or a new one for the first time, from the ledger alone."""
    from oncehouse.monitoring.actions import request_refill, require_table

    pipeline = load_pipeline(file)
    require_table(pipeline, table)
    with open_ledger(pipeline) as catalog:
        number = request_refill(pipeline, catalog, table)
    print_request(number, RequestKind.REFILL_TABLE, {"table": table}, as_json=as_json)


def rebuild_index(file: File = DEFAULT_FILE, *, as_json: AsJson = False) -> None:
    """Rebuild the key index from the parts of the ledger."""
    leave_request(load_pipeline(file), RequestKind.REBUILD_INDEX, {}, as_json=as_json)


def leave_request(
    pipeline: Pipeline, kind: RequestKind, arguments: dict[str, object], *, as_json: bool
) -> None:
    from oncehouse.ledger.catalog.requests import add_request

    with open_ledger(pipeline) as catalog:
        number = add_request(catalog, kind, arguments)
    print_request(number, kind, arguments, as_json=as_json)


def print_request(number: int, kind: RequestKind, arguments: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        show_json(LeftRequest(request=number, kind=kind, arguments=arguments))
    else:
        say(f"request {number} ({kind}) is in the ledger; a running pipeline performs it, else the next run")
