"""Opens the ledger of a pipeline for those who look at it or leave a request in it; makes none."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.config_values import reveal
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncehouse.config import Pipeline
    from oncehouse.ledger.catalog import Catalog


# A person waits for the answer; a running pipeline is more patient.
_RETRY_SECONDS = (0.2, 1.0)


@contextmanager
def open_catalog(pipeline: Pipeline) -> Iterator[Catalog]:
    """The catalog, whether there is a ledger in it or not; none is made by looking."""
    from oncehouse.ledger.catalog import Catalog

    url = reveal(pipeline.ledger.catalog)
    # An empty catalog in memory answers as one that is still to be made.
    catalog = Catalog(url if may_exist(url) else "sqlite://", pipeline.pipeline, retry_seconds=_RETRY_SECONDS)
    try:
        yield catalog
    finally:
        catalog.close()


@contextmanager
def open_ledger(pipeline: Pipeline) -> Iterator[Catalog]:
    """The catalog for as long as it is needed; a ConfigurationError when there is no ledger yet."""
    absent = ConfigurationError(
        f"Pipeline {pipeline.pipeline} has no ledger yet at ledger.catalog. `oncehouse run` makes it; "
        "if it has run before, ledger.catalog names another place than it did."
    )
    with open_catalog(pipeline) as catalog:
        if not catalog.exists() or catalog.identity() is None:
            raise absent
        yield catalog


def may_exist(url: str) -> bool:
    """False only for a SQLite file that is not there, which opening would make."""
    scheme, _, rest = url.partition(":///")
    path = rest.partition("?")[0]
    if scheme.partition("+")[0] != "sqlite" or path.startswith("file:"):
        return True
    return bool(path) and Path(path).is_file()
