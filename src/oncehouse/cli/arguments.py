"""Arguments that commands share, under one name and one explanation each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_FILE = Path("pipeline.yaml")
DEFAULT_MESSAGING_FILE = Path("messaging.yaml")

File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline file.")]
MessagingFile = Annotated[Path, typer.Argument(metavar="FILE", help="The messaging file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
