"""`oncehouse leases`: which process runs which stage of a pipeline, and for how long no other may."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File
from oncehouse.cli.open_ledger import open_ledger
from oncehouse.cli.output import show_json, show_table
from oncehouse.cli.pager import paged
from oncehouse.common.formatting import format_elapsed
from oncehouse.common.json_documents import Answer
from oncehouse.config.file_loader import load_pipeline

if TYPE_CHECKING:
    from oncehouse.monitoring.overview import LeaseView


@dataclass(frozen=True, kw_only=True)
class LeaseList(Answer, of=("leases",)):
    leases: tuple[LeaseView, ...]


@paged()
def leases(file: File = DEFAULT_FILE, *, as_json: AsJson = False) -> None:
    """Show which process runs each stage of the pipeline."""
    from oncehouse.ledger.models import format_holder
    from oncehouse.monitoring.overview import list_lease_views

    with open_ledger(load_pipeline(file)) as catalog:
        found = list_lease_views(catalog)
    if as_json:
        show_json(LeaseList(leases=found))
        return
    show_table(
        ["stage", "held by", "for another", "token"],
        [
            (
                view.stage,
                format_holder(view.holder) if view.ends_in_seconds else "no process",
                format_elapsed(view.ends_in_seconds) if view.ends_in_seconds else "",
                str(view.token),
            )
            for view in found
        ],
        empty="no process has run it yet",
    )
