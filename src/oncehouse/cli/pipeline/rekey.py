"""`oncehouse rekey`: what another identity rule would mean for the ledger, the request to change it, and how far it is.

The pipeline file has the new rule, the ledger the old one. A pipeline that runs takes the request up and reads on while
it prepares the change; one that does not run performs it when it is started.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File
from oncehouse.cli.open_ledger import open_ledger
from oncehouse.cli.output import say, show_facts, show_json
from oncehouse.cli.pipeline.requests import LeftRequest
from oncehouse.common.json_documents import Answer
from oncehouse.config.file_loader import load_pipeline
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.models import RequestKind, format_rule

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.catalog.database import Catalog
    from oncehouse.ledger.catalog.rekey import RekeyProgress
    from oncehouse.ledger.models import LedgerIdentity, Request
    from oncehouse.pipeline.requests.rekey import Forecast


@dataclass(frozen=True, kw_only=True)
class Withdrawn(Answer, of=("rekey",)):
    withdrawn: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PlannedRekey(Answer, of=("rekey",)):
    ledger: LedgerIdentity | None
    file: LedgerIdentity
    change: bool
    forecast: Forecast | None


@dataclass(frozen=True, kw_only=True)
class RekeyUnderWay(Answer, of=("rekey",)):
    ledger: LedgerIdentity | None
    asked: LedgerIdentity
    progress: RekeyProgress


def rekey(
    file: File = DEFAULT_FILE,
    *,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply", help="Ask for the change; the running pipeline, or the next run, performs it."
        ),
    ] = False,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Withdraw a request that has not taken effect.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what the identity rule of FILE would change in the ledger; with --apply, ask for the change."""
    if apply and withdraw:
        raise ConfigurationError("--apply and --withdraw contradict each other; choose one")
    pipeline = load_pipeline(file)
    with open_ledger(pipeline) as catalog:
        if withdraw:
            _withdraw(catalog, as_json=as_json)
        elif apply:
            _ask(pipeline, catalog, as_json=as_json)
        else:
            _show_plan(pipeline, catalog, as_json=as_json)


def _withdraw(catalog: Catalog, *, as_json: bool) -> None:
    from oncehouse.ledger.catalog.requests import withdraw_requests

    numbers = withdraw_requests(catalog, RequestKind.REKEY)
    if as_json:
        show_json(Withdrawn(withdrawn=numbers))
    else:
        say(f"withdrawn: {', '.join(map(str, numbers))}" if numbers else "there is nothing to take back")


def _ask(pipeline: Pipeline, catalog: Catalog, *, as_json: bool) -> None:
    from oncehouse.ledger.catalog.requests import add_request, pending_rekey
    from oncehouse.pipeline.schema.identity_guard import format_section

    known, wanted = _rules(pipeline, catalog)
    waiting = pending_rekey(catalog)
    if waiting is not None:
        same = "this very change" if waiting == wanted else "a change to another rule"
        raise ConfigurationError(
            f"Pipeline {pipeline.pipeline}: {same} is asked for already. `oncehouse rekey` shows how far it is; "
            "`oncehouse rekey --withdraw` takes the request back."
        )
    if known == wanted:
        raise ConfigurationError(
            f"Pipeline {pipeline.pipeline}: the ledger has the rule of the pipeline file already; nothing to change."
        )
    arguments: dict[str, object] = {
        "fingerprint": wanted.fingerprint,
        "buckets": wanted.buckets,
        "rule": format_section(pipeline),
    }
    number = add_request(catalog, RequestKind.REKEY, arguments)
    if as_json:
        show_json(LeftRequest(request=number, kind=RequestKind.REKEY, arguments=arguments))
        return
    say(
        f"request {number} (rekey) is in the ledger; a pipeline that runs prepares the change while it reads on, else "
        "the next `oncehouse run` does. `oncehouse rekey` shows how far it is"
    )


def _rules(pipeline: Pipeline, catalog: Catalog) -> tuple[LedgerIdentity | None, LedgerIdentity]:
    from oncehouse.pipeline.schema.identity_guard import identity_of

    return catalog.identity(), identity_of(pipeline, catalog)


def _show_plan(pipeline: Pipeline, catalog: Catalog, *, as_json: bool) -> None:
    from oncehouse.ledger.catalog.requests import open_rekey
    from oncehouse.pipeline.requests.rekey import forecast

    known, wanted = _rules(pipeline, catalog)
    if (waiting := open_rekey(catalog)) is not None:
        _show_progress(catalog, waiting, as_json=as_json)
        return
    found = forecast(pipeline, catalog) if known and known.fingerprint != wanted.fingerprint else None
    if as_json:
        show_json(PlannedRekey(ledger=known, file=wanted, change=known != wanted, forecast=found))
        return
    if known == wanted or known is None:
        say("the ledger has the rule of the pipeline file; there is nothing to change")
        return
    show_facts(_facts(known, wanted, found))
    say("nothing was changed; --apply asks for the change")


def _show_progress(catalog: Catalog, request: Request, *, as_json: bool) -> None:
    from oncehouse.ledger.catalog.rekey import read_progress
    from oncehouse.ledger.catalog.requests import rekey_target

    known, progress = catalog.identity(), read_progress(catalog, request.request)
    if as_json:
        show_json(RekeyUnderWay(ledger=known, asked=rekey_target(request), progress=progress))
        return
    facts: dict[str, object] = {} if known is None else {"ledger": _describe_rule(known)}
    show_facts(
        facts
        | {
            "asked for": f"{_describe_rule(rekey_target(request))} (request {request.request})",
            "prepared": f"{_format_share(progress.events_done, progress.events)} of {progress.events:,} events, "
            f"{progress.key_files_done:,} of {progress.key_files:,} key files",
        }
    )
    say("the old rule holds until all are prepared; --withdraw takes the request back")


def _format_share(done: int, total: int) -> str:
    return f"{done / total:.0%}" if total else "all"


def _facts(known: LedgerIdentity, wanted: LedgerIdentity, found: Forecast | None) -> dict[str, object]:
    facts: dict[str, object] = {
        "ledger": _describe_rule(known),
        "pipeline file": _describe_rule(wanted),
    }
    if found is not None:
        facts |= {
            "kept events, duplicates among them": found.events,
            "one event by the new rule, two in ClickHouse": found.doubled,
            "duplicates by the old rule only, which stay out": found.dropped,
        }
    return facts


def _describe_rule(identity: LedgerIdentity) -> str:
    """A rule as people read it."""
    return f"{format_rule(identity)}; {identity.buckets} buckets"
