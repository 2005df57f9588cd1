"""`oncehouse doctor`: what of this machine would be in the way, before anything is tried.

`check` asks the servers about a pipeline; this looks at what must be there before it can ask: Java, packages, memory,
disk, ports.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson
from oncehouse.cli.output import say, show_json, show_table
from oncehouse.cli.pager import paged
from oncehouse.common.json_documents import Answer
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehouse.clickhouse.preflight.finding import Finding


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Answer, of=("doctor",)):
    ok: bool
    findings: list[Finding]


@paged()
def doctor(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A pipeline file, whose ports and disks are checked too."),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Check this machine: versions, Java, memory, disk, limits, ports; exit 2 if something is missing."""
    from oncehouse.cli.machine_checks import check_machine, check_servers_and_disks, worst
    from oncehouse.clickhouse.preflight.finding import Level
    from oncehouse.config.file_loader import load_pipeline

    named = file or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)
    found = list(check_machine())
    if named is not None:
        found += check_servers_and_disks(load_pipeline(named))
    ok = worst(found) is not Level.ERROR
    if as_json:
        show_json(Diagnosis(ok=ok, findings=found))
    else:
        show_table(["", "part", "found"], [(one.level, one.where, one.what) for one in found], empty="")
        for one in found:
            if one.advice:
                say(f"{one.where}: {one.advice}")
        say("nothing is missing here" if ok else "something is missing here: see the errors")
    raise typer.Exit(0 if ok else ConfigurationError.exit_code)
