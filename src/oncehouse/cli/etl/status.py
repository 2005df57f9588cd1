"""`oncehouse etl status`: what the scheduler itself would decide now, with its reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.cli.arguments import AsJson
from oncehouse.cli.etl.options import DEFAULT_SETTINGS, SettingsFile, open_etl
from oncehouse.cli.etl.status_table import show_status
from oncehouse.cli.output import show_json
from oncehouse.cli.pager import paged
from oncehouse.common.json_documents import Answer

if TYPE_CHECKING:
    from oncehouse.etl.status import TopicStatus


@dataclass(frozen=True, kw_only=True)
class EtlStatus(Answer, of=("etl status",)):
    topics: list[TopicStatus]


@paged()
def status(file: SettingsFile = DEFAULT_SETTINGS, *, as_json: AsJson = False) -> None:
    """Show where each topic stands, how far its sources are ahead, and why it waits."""
    from oncehouse.etl.status import read_status

    with open_etl(file) as etl:
        found = read_status(etl)
    if as_json:
        show_json(EtlStatus(topics=found))
        return
    show_status(found)
