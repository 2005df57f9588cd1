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
from oncehouse.pipeline.formats.schema_registry import MOST_REQUESTED
from oncehouse.pipeline.schema.discovery import learn_schemas

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.catalog.database import Catalog
    from oncehouse.ledger.models import DeadLetterFile

# How often a registry or folder is asked for schemas that records wait for.
_CHECK_SECONDS = 5.0
# One check asks several times while there are schemas that were never asked for, for so long.
_LONGEST_CHECK_SECONDS = 10.0


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
        # What a registry or folder is still to be asked for before any record expires; None: it did not answer yet, or
        # not the last time. While the process was down, or the registry away, a schema may have been registered.
        self._unasked: list[str] | None = None

    def has_due(self, pipeline: Pipeline) -> bool:
        """Whether `list_due` has any; learns schemas first."""
        awaited = self._check(pipeline)
        before = self._expire_before(pipeline)
        is_late = before is not None and awaited.oldest is not None and awaited.oldest <= before
        return awaited.is_readable or is_late

    def list_due(self, pipeline: Pipeline) -> Iterator[DueFiles]:
        """Learns schemas first, as it is also called where `has_due` was not."""
        self._check(pipeline)
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

    def _check(self, pipeline: Pipeline) -> Awaited:
        awaited = self._read(pipeline)
        if awaited.oldest is None or time.monotonic() < self._next_check:
            return awaited
        found = self._learn(pipeline, list(awaited.schemas))
        self._next_check = time.monotonic() + _CHECK_SECONDS
        return self._read(pipeline) if found else awaited

    def _learn(self, pipeline: Pipeline, names: list[str]) -> bool:
        """Whether any was found. All are asked for once; from then on the first ones and some others each time."""
        if self._unasked is None:
            self._unasked = names
        found, ends_at = False, time.monotonic() + _LONGEST_CHECK_SECONDS
        while True:
            learned = learn_schemas(pipeline, self._catalog, self._unasked[:MOST_REQUESTED] or names)
            found = found or bool(learned.schemas)
            self._unasked = None if learned.registry_is_away else self._unasked[MOST_REQUESTED:]
            if not self._unasked or time.monotonic() >= ends_at:
                return found

    def _read(self, pipeline: Pipeline) -> Awaited:
        return self._awaited.read(self._catalog, known=self._known(pipeline))

    def _known(self, pipeline: Pipeline) -> frozenset[str]:
        """Schemas of the pipeline's own format: the same name in another one is not what records wait for."""
        return list_names(self._catalog, format_=pipeline.source.format)

    def _expire_before(self, pipeline: Pipeline) -> float | None:
        """None: nothing expires, or not yet."""
        wait = pipeline.source.schema_wait
        has_asked_for_all = self._unasked is not None and not self._unasked
        return self._catalog.now() - wait if wait is not None and has_asked_for_all else None
