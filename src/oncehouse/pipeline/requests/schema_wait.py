"""Which records that wait for their schema are to be decoded now: their schema is known, or they have waited too long.

Looked at about once a second, so that no more is read than has changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.ledger.catalog.known_schemas import list_names
from oncehouse.ledger.stats.awaited_schemas import Awaited, AwaitedSchemas, list_waiting_files
from oncehouse.pipeline.dead_letters.filter import Selection
from oncehouse.pipeline.schema.discovery import learn_schemas

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.catalog.database import Catalog
    from oncehouse.ledger.models import DeadLetterFile

# How often a registry or folder is asked for schemas that records wait for.
_CHECK_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class DueFiles:
    """Files for one epoch."""

    files: tuple[DeadLetterFile, ...]
    selection: Selection
    """Which of their records are decoded; the others wait on."""
    expired: bool
    """Whether records whose schema is still unknown become dead letters."""


class WaitingRecords:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._awaited = AwaitedSchemas()
        self._next_check = 0.0

    def has_due(self, pipeline: Pipeline) -> bool:
        """Whether `list_due` has any; learns schemas first."""
        awaited = self._read(pipeline)
        if awaited.oldest is not None and time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + _CHECK_SECONDS
            if learn_schemas(pipeline, self._catalog, tuple(awaited.schemas)).schemas:
                awaited = self._read(pipeline)
        if awaited.is_readable or awaited.oldest is None:
            return awaited.is_readable
        before = self._expire_before(pipeline)
        return before is not None and awaited.oldest <= before

    def list_due(self, pipeline: Pipeline) -> Iterator[DueFiles]:
        known = self._known(pipeline)
        before = self._expire_before(pipeline)
        expired: list[DeadLetterFile] = []
        readable: list[DeadLetterFile] = []
        for file in list_waiting_files(self._catalog, known=known, before=before):
            (expired if before is not None and file.registered_at <= before else readable).append(file)
        if expired:
            yield DueFiles(files=tuple(expired), selection=Selection(), expired=True)
        if readable:
            selection = Selection(schemas=tuple(sorted(known)))
            yield DueFiles(files=tuple(readable), selection=selection, expired=False)

    def _read(self, pipeline: Pipeline) -> Awaited:
        return self._awaited.read(self._catalog, known=self._known(pipeline))

    def _known(self, pipeline: Pipeline) -> frozenset[str]:
        """Schemas of the pipeline's own format: the same name in another one is not what records wait for."""
        return list_names(self._catalog, format_=pipeline.source.format)

    def _expire_before(self, pipeline: Pipeline) -> float | None:
        wait = pipeline.source.schema_wait
        return None if wait is None else self._catalog.now() - wait
