"""Whether ledger and pipeline file mean the same identity rule, and what may be done when they do not.

A ledger takes no events under another rule than its own. Where somebody has asked for the change, the process
that is started with the new rule performs it before its first epoch, and no other may start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncehouse.columns import parse_type
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.catalog import Catalog, check_identity
from oncehouse.ledger.records import Identity
from oncehouse.ledger.requests import pending_rekey
from oncehouse.pipeline.identity_rule import Rule, fingerprint, rule_of
from oncehouse.pipeline.schemas import known_schemas

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncehouse.columns import ColumnType
    from oncehouse.config import Pipeline


def identity_of(pipeline: Pipeline, catalog: Catalog | None = None) -> Identity:
    """The rule of the pipeline file as the ledger remembers it; `catalog` where schemas may be known already."""
    types = {name: parse_type(text) for name, text in pipeline.source.decoded_fields.items()}
    return remembered(rule_of(pipeline, known_schemas(pipeline, catalog)), types, pipeline.identity.buckets)


def remembered(rule: Rule, types: Mapping[str, ColumnType], buckets: int) -> Identity:
    return Identity(fingerprint=fingerprint(rule, types), buckets=buckets)


def check_rule(pipeline: Pipeline, catalog: Catalog) -> None:
    """Refuse a rule that is neither the ledger's nor the one it is to be changed to."""
    if not catalog.exists() or (known := catalog.identity()) is None:
        return
    asked, waiting = identity_of(pipeline, catalog), pending_rekey(catalog)
    if waiting is None:
        check_identity(pipeline.pipeline, known, asked)
    elif waiting != asked:
        raise refuse_start(pipeline.pipeline)


def refuse_start(pipeline: str) -> ConfigurationError:
    return ConfigurationError(
        f"Pipeline {pipeline}: `oncehouse rekey` has asked for another identity rule than this pipeline file has. "
        "Nothing was changed and no event was read. Start with the file that has the new rule, which changes the "
        "ledger first, or take the request back with `oncehouse rekey --withdraw`."
    )


def adopt(pipeline: Pipeline, catalog: Catalog) -> None:
    """Enter the pipeline into its ledger; a change that was asked for is left to the holder of the lease."""
    if pending_rekey(catalog) is None:
        catalog.adopt(identity_of(pipeline, catalog))
