"""The arguments that the `etl` commands share, and how they open what they work on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oncehouse.etl.open import Etl, find_source, find_topic, open_etl, open_store, read_offsets

__all__ = [
    "DEFAULT_SETTINGS",
    "Etl",
    "SettingsFile",
    "TopicName",
    "find_source",
    "find_topic",
    "open_etl",
    "open_store",
    "read_offsets",
]

DEFAULT_SETTINGS = Path("etl.yaml")

SettingsFile = Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="The scheduler's settings.")]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="A topic of the lineage.")]
