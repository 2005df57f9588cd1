"""Opens the ledger of a pipeline for those who look at it or leave a request in it; makes none."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.common.redaction import reveal
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncehouse.common.database import Patience
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.ledger.catalog.database import Catalog


# A person waits for the answer; a running pipeline is more patient.
_RETRY_SECONDS = (0.2, 1.0)
_LOCK_SECONDS = 5.0


@contextmanager
def open_catalog(pipeline: Pipeline) -> Iterator[Catalog]:
    """The catalog, whether there is a ledger in it or not; none is made by looking."""
    catalog = _open(pipeline)
    try:
        yield catalog
    finally:
        catalog.close()


def _open(pipeline: Pipeline, *, patience: Patience | None = None) -> Catalog:
    from oncehouse.ledger.catalog.database import Catalog

    url = reveal(pipeline.ledger.catalog)
    # An empty catalog in memory answers as one that is still to be made.
    return Catalog(
        url if may_exist(url) else "sqlite://",
        pipeline.pipeline,
        retry_seconds=_RETRY_SECONDS,
        patience=patience,
        lock_seconds=_LOCK_SECONDS,
    )


@contextmanager
def open_ledger(pipeline: Pipeline) -> Iterator[Catalog]:
    """The catalog for as long as it is needed; a ConfigurationError when there is no ledger yet."""
    with open_catalog(pipeline) as catalog:
        _require_ledger(pipeline, catalog)
        yield catalog


def _require_ledger(pipeline: Pipeline, catalog: Catalog) -> None:
    if not catalog.exists() or catalog.identity() is None:
        raise ConfigurationError(
            f"Pipeline {pipeline.pipeline} has no ledger yet at ledger.catalog. `oncehouse run` makes it; "
            "if it has run before, ledger.catalog names another place than it did."
        )


class KeptLedger:
    """For callers that read again and again: connections and prepared statements outlive a read.

    A SQLite file that is gone, or another one in its place, is noticed at the next look.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._lock = threading.Lock()
        self._catalog: Catalog | None = None
        self._file: tuple[int, int] | None = None

    def open(self) -> Catalog:
        """A ConfigurationError when there is no ledger (any more). Safe to call from several threads."""
        file = _identify(reveal(self._pipeline.ledger.catalog))
        with self._lock:
            if self._catalog is not None and file == self._file:
                return self._catalog
            self._forget()
        # Without the lock: a server that accepts no connection must hold up only the threads that ask it.
        opened = self._connect()
        with self._lock:
            if self._catalog is not None and file == self._file:
                opened.close()  # another thread was quicker
                return self._catalog
            self._forget()
            self._file, self._catalog = file, opened
            return opened

    def _connect(self) -> Catalog:
        """Looked at before it is kept: an empty catalog in memory stands for one that is not there."""
        from oncehouse.common.database import LOOKING

        catalog = _open(self._pipeline, patience=LOOKING)
        try:
            _require_ledger(self._pipeline, catalog)
        except BaseException:
            catalog.close()
            raise
        return catalog

    def close(self) -> None:
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
        self._catalog = None


def _identify(url: str) -> tuple[int, int] | None:
    """Which file a SQLite catalog is, however it is named; None for one that is not there, and for a server."""
    path = url.partition(":///")[2].partition("?")[0]
    if not url.startswith("sqlite") or path.startswith("file:"):
        return None
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def may_exist(url: str) -> bool:
    """False only for a SQLite file that is not there, which opening would make."""
    scheme, _, rest = url.partition(":///")
    path = rest.partition("?")[0]
    if scheme.partition("+")[0] != "sqlite" or path.startswith("file:"):
        return True
    try:
        return bool(path) and Path(path).is_file()
    except OSError:
        return True  # opening it says why it cannot be used
