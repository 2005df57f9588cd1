"""`oncehouse upgrade`: the catalog of an older oncehouse brought to this one's tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File
from oncehouse.cli.open_ledger import open_catalog
from oncehouse.cli.output import format_time, say, show_json, show_table
from oncehouse.common.json_documents import Answer
from oncehouse.config.file_loader import load_pipeline
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehouse.ledger.catalog.database import Catalog
    from oncehouse.ledger.catalog.upgrade_status import Standing


@dataclass(frozen=True, kw_only=True)
class UpgradeAnswer(Answer, of=("upgrade",)):
    before: int
    """The version that the catalog had."""
    catalog: Standing
    """As it is now."""


def upgrade(
    file: File = DEFAULT_FILE,
    *,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan", help="Show the version, the missing steps and the processes at work; change nothing."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring the ledger's catalog to this oncehouse's version; `run` does so by itself."""
    with open_catalog(load_pipeline(file)) as catalog:
        before = _read_status(catalog)
        if not plan:
            catalog.prepare()
        after = _read_status(catalog)
    if as_json:
        show_json(UpgradeAnswer(before=before.version, catalog=after))
    else:
        _show(before, after, plan=plan)


def _read_status(catalog: Catalog) -> Standing:
    from oncehouse.ledger.catalog.upgrade_status import read_standing

    found = read_standing(catalog)
    if not found.version:
        raise ConfigurationError(
            "There is no catalog yet at ledger.catalog, so nothing is to be upgraded. `oncehouse run` makes it; if it "
            "has run before, ledger.catalog names another place than it did."
        )
    if found.version > found.wanted:
        catalog.exists()  # its error says which version can work with it
    return found


def _show(before: Standing, after: Standing, *, plan: bool) -> None:
    if plan:
        for step in after.steps:
            say(f"step {step.version}: {step.what}{_describe_fence(step.fences)}")
    say(_describe_version(before, after))
    if after.holders:
        show_table(
            ["pipeline", "stage", "run by"],
            [(found.pipeline, found.stage, found.holder) for found in after.holders],
            empty="",
        )
    if after.history:
        show_table(
            ["version", "by oncehouse", "at (UTC)"],
            [
                (found.version, found.oncehouse, format_time(found.upgraded_at) or "-")
                for found in after.history
            ],
            empty="",
        )


def _describe_fence(fences: bool) -> str:
    return "; ends processes of an older oncehouse" if fences else ""


def _describe_version(before: Standing, after: Standing) -> str:
    if before.version < after.version:
        return f"the catalog was upgraded from version {before.version} to {after.version}"
    if after.steps:
        return f"the catalog has version {after.version}, this oncehouse works with {after.wanted}; nothing was changed"
    return f"the catalog has version {after.version}, which this oncehouse works with"
