"""The ledger of a pipeline as commands open it, and the pipeline as its ledger knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncehouse.ledger.open import may_exist, open_catalog, open_ledger

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline

__all__ = ["load_current", "may_exist", "open_catalog", "open_ledger"]


def load_current(pipeline: Pipeline) -> Pipeline:
    """The pipeline with the fields that its ledger has learnt; a ledger that cannot be asked has learnt none."""
    from oncehouse.errors import OncehouseError
    from oncehouse.pipeline.schema.evolution import current

    with open_catalog(pipeline) as catalog:
        try:
            return current(pipeline, catalog)
        except OncehouseError:
            return pipeline  # the command that needs the ledger reports what is wrong
