"""`oncehouse bundle`: what the executors of a cluster need, in one archive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import AsJson
from oncehouse.cli.output import say, show_json
from oncehouse.common.formatting import format_bytes
from oncehouse.common.json_documents import Answer, Inlined

if TYPE_CHECKING:
    from oncehouse.pipeline.spark.environment_bundle import Bundle


@dataclass(frozen=True, kw_only=True)
class BundleWritten(Answer, of=("bundle",)):
    bundle: Inlined[Bundle]


def bundle(
    archive: Annotated[Path, typer.Argument(help="The archive to write, such as environment.tar.gz.")],
    *,
    more: Annotated[
        list[str] | None,
        typer.Option("--with", help="A further installed package, such as one that your function imports."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write oncehouse and what it needs into ARCHIVE, for Spark to unpack on every executor."""
    from oncehouse.pipeline.spark.environment_bundle import write_bundle

    written = write_bundle(archive, more or ())
    if as_json:
        show_json(BundleWritten(bundle=written))
        return
    say(
        f"{written.file}: {format_bytes(written.size_bytes)}, {len(written.packages)} packages for Python "
        f"{written.python}"
    )
    say(f"in the pipeline file:\n  spark:\n    environment: {written.file}")
