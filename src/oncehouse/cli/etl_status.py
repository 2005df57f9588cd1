"""`oncehouse etl status`: what the scheduler itself would decide now, with its reasons."""

from __future__ import annotations

from oncehouse.cli.arguments import AsJson
from oncehouse.cli.etl_opening import DEFAULT_SETTINGS, SettingsFile, open_etl
from oncehouse.cli.etl_status_text import show_status
from oncehouse.cli.output import show_json


def status(file: SettingsFile = DEFAULT_SETTINGS, *, as_json: AsJson = False) -> None:
    """Show where each topic stands, how far its sources are ahead, and why it waits."""
    from oncehouse.etl.status import read_status

    with open_etl(file) as etl:
        found = read_status(etl)
    if as_json:
        show_json({"topics": found})
        return
    show_status(found)
