"""Arguments that commands share, under one name and one explanation each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oncehouse.common import structured_logging
from oncehouse.common.structured_logging import LogFormat

DEFAULT_FILE = Path("pipeline.yaml")
DEFAULT_MESSAGING_FILE = Path("messaging.yaml")

File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline file.")]
MessagingFile = Annotated[Path, typer.Argument(metavar="FILE", help="The messaging file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]


def _start_logs(log_format: LogFormat | None) -> LogFormat | None:
    if log_format is not None:
        structured_logging.start(log_format)
    return log_format


# A command that declares it writes log lines from then on; `app.run_command` ends that.
Logs = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format",
        envvar=structured_logging.FORMAT_VARIABLE,
        callback=_start_logs,
        help="Write log lines with fields on standard error, as text or JSON.",
        show_default=False,
    ),
]
