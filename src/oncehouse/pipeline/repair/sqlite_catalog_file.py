"""The catalog as a file: whether it can be used at all, and how a restored one takes the place of a damaged one.

A SQLite file that is missing or damaged is built again next to its place and moved there when it is complete, so that a
failure before leaves everything as it was. Other databases, and a sound file that other pipelines may use, are written
in one transaction.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.common.database import database_file
from oncehouse.errors import CorruptFileError, TransientError
from oncehouse.ledger.catalog import snapshots
from oncehouse.ledger.catalog.database import Catalog

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline

_BESIDE = ("-wal", "-shm")


def inspect_catalog_file(pipeline: Pipeline) -> str | None:
    """What keeps the catalog from being used at all; None where it can be read and knows the pipeline."""
    url = pipeline.ledger.catalog.get_secret_value()
    if (path := database_file(url)) is not None and not path.is_file():
        return f"there is no file {path}"
    catalog = Catalog(url, pipeline.pipeline, retry_seconds=(0.2, 1.0))
    try:
        if (damage := snapshots.examine(catalog.engine)) is not None:
            return f"the SQLite file is damaged: {damage}"
        if not catalog.exists() or catalog.identity() is None:
            return "it does not know the pipeline"
    except CorruptFileError as error:
        return str(error)
    finally:
        catalog.close()
    return None


def fill_catalog(
    pipeline: Pipeline, fill: Callable[[Catalog], None], say: Callable[[str], None]
) -> Path | None:
    """Let `fill` write the pipeline into a catalog that does not know it; returns where a damaged file was put."""
    url = pipeline.ledger.catalog.get_secret_value()
    path = database_file(url)
    if path is None or (path.is_file() and not _is_damaged(url, pipeline.pipeline)):
        _fill(url, pipeline.pipeline, fill, say)
        return None
    stamp = time.time_ns() // 1_000_000
    new = path.with_name(f"{path.name}.restored-{stamp}")
    try:
        _fill(f"sqlite:///{new}", pipeline.pipeline, fill, say)
        _require_intact(new)
        return _put_in_place(path, new, path.with_name(f"{path.name}.damaged-{stamp}"))
    finally:
        for ending in ("", *_BESIDE):
            new.with_name(new.name + ending).unlink(missing_ok=True)


def _is_damaged(url: str, pipeline: str) -> bool:
    catalog = Catalog(url, pipeline, retry_seconds=())
    try:
        return snapshots.examine(catalog.engine) is not None
    finally:
        catalog.close()


def _fill(url: str, pipeline: str, fill: Callable[[Catalog], None], say: Callable[[str], None]) -> None:
    catalog = Catalog(url, pipeline, report=say)
    try:
        catalog.prepare()
        fill(catalog)
    finally:
        catalog.close()


def _require_intact(new: Path) -> None:
    # Closing writes SQLite's log into the file; one that is still there would be missed in the new place.
    if (log := new.with_name(f"{new.name}-wal")).exists() and log.stat().st_size:
        raise TransientError(f"Another process reads {new}; nothing was changed. Let it end, and try again.")


def _put_in_place(path: Path, new: Path, damaged: Path) -> Path | None:
    """The damaged file goes first: its log must never be read as that of the new one."""
    kept = path.is_file()
    for ending in ("", *_BESIDE):
        companion = path.with_name(path.name + ending)
        if companion.exists():
            companion.rename(damaged.with_name(damaged.name + ending))
    new.rename(path)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return damaged if kept else None
