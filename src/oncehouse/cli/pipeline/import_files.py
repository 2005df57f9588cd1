"""`oncehouse import`: a folder of files into a pipeline, until everything is in ClickHouse.

Stopped or killed, the same command goes on where the ledger ends. Signals end it as they end `oncehouse run`.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from oncehouse.cli.arguments import DEFAULT_FILE, AsJson, File, Logs
from oncehouse.cli.pipeline.run import (
    INTERRUPTED_EXIT_CODE,
    UNMET_EXIT_CODE,
    OverdueError,
    Stop,
    finish,
    in_thread,
)
from oncehouse.cli.progress_view import ProgressView
from oncehouse.common import structured_logging
from oncehouse.common.tracing_export import export_spans
from oncehouse.config.field_types import parse_size
from oncehouse.config.file_loader import load_pipeline
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.models import FileFormat


def import_folder(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER", help="Folder or file: a path, or s3://bucket/folder.", show_default=False
        ),
    ],
    file: File = DEFAULT_FILE,
    *,
    format_: Annotated[
        FileFormat, typer.Option("--format", help="How the files are written; JSON is one object a line.")
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the import; without one, the same folder is the same import."),
    ] = None,
    batch_bytes: Annotated[
        str, typer.Option("--batch-bytes", help="About how much of the files is settled at once.")
    ] = "256MB",
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait for another process that runs the pipeline, instead of ending."),
    ] = False,
    as_json: AsJson = False,
    log_format: Logs = None,  # noqa: ARG001 - its callback acts
) -> None:
    """Import a folder of Parquet, JSON or CSV files; after a stop, the same command continues."""
    from oncehouse.pipeline.external.file_import import import_files, make_job

    pipeline = load_pipeline(file)
    structured_logging.add_process_fields(pipeline=pipeline.pipeline)
    job = make_job(folder, format_, name=name, batch_bytes=_read_size(batch_bytes))
    try:
        with (
            ProgressView(pipeline=pipeline.pipeline, as_json=as_json) as view,
            export_spans(view.say),
            Stop(view.say, within_seconds=pipeline.stop_within) as stop,
        ):
            view.say(f"importing as {job.name}")
            result = in_thread(
                lambda: import_files(
                    pipeline, job, stop=stop.requested, progress=view, say=view.say, wait=wait
                ),
                gives_up=stop.is_overdue,
            )
    except KeyboardInterrupt:
        os._exit(INTERRUPTED_EXIT_CODE)
    except OverdueError:
        stop.end_at_once()
    finish(result, as_json=as_json)
    if stop.interrupted:
        raise typer.Exit(INTERRUPTED_EXIT_CODE)
    if result.parked or result.refused:
        raise typer.Exit(UNMET_EXIT_CODE)


def _read_size(text: str) -> int:
    try:
        return int(str(parse_size(text)))
    except ValueError as error:
        raise ConfigurationError(f"--batch-bytes {text}: {error}") from None
