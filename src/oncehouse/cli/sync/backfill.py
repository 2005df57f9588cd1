"""`oncehouse sync backfill` and `oncehouse sync replay`: rows that are there already, sent while writers go on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from oncehouse.cli.arguments import AsJson
from oncehouse.cli.output import say, show_json
from oncehouse.cli.pipeline.run import INTERRUPTED_EXIT_CODE, UNMET_EXIT_CODE, Stop, in_thread
from oncehouse.cli.sync.key_progress import KeyProgressView
from oncehouse.cli.sync.options import Modules, Names, find, find_enabled
from oncehouse.common.json_documents import Answer, Inlined
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    import threading

    from oncehouse.sync.backfill.backfill import BackfillResult
    from oncehouse.sync.model.model_sync import ModelSync

Chunk = Annotated[int, typer.Option("--chunk", min=1, max=1_000_000, help="Keys to read at a time.")]
DEFAULT_CHUNK = 50_000


@dataclass(frozen=True, kw_only=True)
class Backfilled(Answer, of=("sync backfill", "sync replay")):
    event: Literal["backfilled"] = "backfilled"
    result: Inlined[BackfillResult]


@dataclass(frozen=True, kw_only=True)
class RegisteredKeys(Answer, of=("sync replay",)):
    sync: str
    operations: int


def backfill(
    names: Names = None,
    *,
    module: Modules = None,
    chunk: Chunk = DEFAULT_CHUNK,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin with the first key, not where an unfinished one was.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Sync existing rows, while writers and syncs continue. After a kill, it continues where it was."""
    _backfill(find_enabled(module, names), chunk=chunk, restart=restart, as_json=as_json)


def _backfill(syncs: list[type[ModelSync]], *, chunk: int, restart: bool, as_json: bool) -> None:
    results: list[BackfillResult] = []
    try:
        with KeyProgressView(as_json=as_json) as view, Stop(view.say) as stop:
            for sync in syncs:
                if stop.requested.is_set():
                    break
                results.append(_backfill_one(sync, chunk, view, stop.requested, restart=restart))
    except KeyboardInterrupt:
        os._exit(INTERRUPTED_EXIT_CODE)  # the second signal asked not to wait for what is under way
    finally:
        # When the bars are gone; also of those that were done before one failed.
        for result in results:
            _print_result(result, as_json=as_json)
    if stop.interrupted:
        raise typer.Exit(INTERRUPTED_EXIT_CODE)
    if len(results) < len(syncs) or not all(result.finished for result in results):
        raise typer.Exit(UNMET_EXIT_CODE)


def _backfill_one(
    sync: type[ModelSync], chunk: int, view: KeyProgressView, stop: threading.Event, *, restart: bool
) -> BackfillResult:
    from oncehouse.sync.backfill.backfill import backfill as fill

    return in_thread(lambda: fill(sync, chunk=chunk, restart=restart, stop=stop, report=view))


def _print_result(result: BackfillResult, *, as_json: bool) -> None:
    if as_json:
        show_json(Backfilled(result=result))
        return
    pace = f" ({result.keys / result.seconds:,.0f}/s)" if result.seconds else ""
    begun = ", from where it was left" if result.resumed else ""
    end = "" if result.finished else "; not finished: run it again and it goes on there"
    say(
        f"{result.sync}: {result.keys:,} keys, {result.rows:,} rows in {result.seconds:,.1f} s{pace}{begun}{end}"
    )


def replay(
    name: Annotated[str, typer.Argument(metavar="SYNC", help="The sync.")],
    *,
    module: Modules = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="A key; may be repeated. Of several columns a JSON list: '[\"a\", 7]'."),
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            "--since", help="All rows that were synced since then (UTC); by their version in ClickHouse."
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All rows: a backfill from the first key.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send rows again: registers their keys for the running syncs."""
    [sync] = find(module, [name])
    if sum((bool(key), since is not None, everything)) != 1:
        raise ConfigurationError("say which rows: one of --key, --since and --all")
    if everything:
        _replay_all(sync, as_json=as_json)
        return
    from oncehouse.sync.backfill.replay import parse_typed_key, register_since, reregister_keys

    if since is not None:
        count = register_since(sync, since)
    else:
        count = reregister_keys(sync, list(dict.fromkeys(parse_typed_key(sync, one) for one in key or ())))
    if as_json:
        show_json(RegisteredKeys(sync=name, operations=count))
    else:
        say(f"{name}: {count:,} operations registered; the running syncs send them (`oncehouse sync run`)")


def _replay_all(sync: type[ModelSync], *, as_json: bool) -> None:
    if sync.declaration().engine.fills_gaps:
        raise ConfigurationError(
            f"{sync.declaration().name} writes to an Append table, where all rows would be there once more. Name keys "
            "or a time, or make a new table and backfill it."
        )
    _backfill([sync], chunk=DEFAULT_CHUNK, restart=True, as_json=as_json)
