"""The options that say what `dashboard` and `metrics` read, and who may open them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import DEFAULT_FILE
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehouse.monitoring.monitor import MonitorTargets

TOKEN_VARIABLE = "ONCEHOUSE_TOKEN"  # noqa: S105 - the name of a variable

Files = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[FILE]...", help="Pipeline files; pipeline.yaml where none is named and it exists."
    ),
]
EtlFile = Annotated[
    Path | None, typer.Option("--etl", metavar="FILE", help="Also the scheduler of this file.")
]
Messaging = Annotated[
    Path | None, typer.Option("--messaging", metavar="FILE", help="Also outbox and inboxes of this file.")
]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--group", help="Also this consumer group, in the Kafka of the messaging file; may be repeated."
    ),
]
HealthFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--health", metavar="FILE", help="Also the consumer that writes this health file; may be repeated."
    ),
]
Modules = Annotated[
    list[str] | None,
    typer.Option("--module", metavar="MODULE", help="Also the syncs of this module; may be repeated."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help=f"File of the token that browsers and scrapers must send; or set {TOKEN_VARIABLE}.",
    ),
]
AllowHosts = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="NAME", help="A name by which it may be called; may be repeated."),
]


def choose_targets(
    files: list[Path] | None,
    etl: Path | None,
    messaging: Path | None,
    groups: list[str] | None,
    health: list[Path] | None,
    modules: list[str] | None,
) -> MonitorTargets:
    """What is named; without anything named, the pipeline file of this folder."""
    from oncehouse.monitoring.monitor import MonitorTargets

    if groups and messaging is None:
        raise ConfigurationError("--group needs --messaging FILE, which says where Kafka is")
    others = bool(etl or messaging or health or modules)
    default = [] if others and not DEFAULT_FILE.exists() else [DEFAULT_FILE]
    return MonitorTargets(
        pipelines=tuple(files or default),
        etl=etl,
        messaging=messaging,
        groups=tuple(groups or ()),
        health_files=tuple(health or ()),
        modules=tuple(modules or ()),
    )


def read_token(file: Path | None) -> str | None:
    """From the file, or else from the environment; kept out of all that is printed."""
    from oncehouse.common.redaction import remember

    if file is None:
        found = os.environ.get(TOKEN_VARIABLE, "")
    else:
        try:
            found = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{file}: the token cannot be read: {error}") from None
        if not found.strip():
            raise ConfigurationError(f"{file} holds no token")
    token = found.strip()
    if token:
        remember(token)
    return token or None
