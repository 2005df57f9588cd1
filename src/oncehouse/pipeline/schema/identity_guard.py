"""Whether ledger and pipeline file mean the same identity rule, and what may be done when they do not.

A ledger takes no events under another rule than its own. Where the change was requested, a process that has
either rule in its file runs under the ledger's own until the change is made; where it cannot know that one, the change
comes before its first epoch.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from oncehouse.column_types.parser import parse_type
from oncehouse.errors import ConfigurationError
from oncehouse.ledger.catalog.database import Catalog, check_identity
from oncehouse.ledger.catalog.requests import open_rekey, pending_rekey, rekey_target
from oncehouse.ledger.models import LedgerIdentity, Request
from oncehouse.pipeline.dedup.identity_rule import Rule, fingerprint, rule_of
from oncehouse.pipeline.schema.discovery import known_schemas

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncehouse.column_types.types import ColumnType
    from oncehouse.config.pipeline import Pipeline

# All of the section that ids and index depend on.
_RULE = ("fields", "from_schema", "headers", "key", "schema_version", "buckets")


def identity_of(pipeline: Pipeline, catalog: Catalog | None = None) -> LedgerIdentity:
    """The rule of the pipeline file as the ledger remembers it; `catalog` where schemas may be known already."""
    types = {name: parse_type(text) for name, text in pipeline.source.decoded_fields.items()}
    return remembered(rule_of(pipeline, known_schemas(pipeline, catalog)), types, pipeline.identity.buckets)


def remembered(rule: Rule, types: Mapping[str, ColumnType], buckets: int) -> LedgerIdentity:
    return LedgerIdentity(fingerprint=fingerprint(rule, types), buckets=buckets)


def format_section(pipeline: Pipeline) -> str:
    """What the pipeline file says of the rule, as the ledger keeps it."""
    said = pipeline.identity.model_dump(mode="json")
    # What is newer than ledgers is written where it says something, so that older processes read the others.
    newer = {} if said["normalize"] == "none" else {"normalize": said["normalize"]}
    return json.dumps({name: said[name] for name in _RULE} | newer)


def with_section(pipeline: Pipeline, section_text: str) -> Pipeline:
    """The pipeline under another rule, and otherwise as its file says."""
    section = type(pipeline.identity)(**json.loads(section_text), window=pipeline.identity.window)
    return pipeline.model_copy(update={"identity": section})


def under_rule(
    pipeline: Pipeline, catalog: Catalog, wanted: LedgerIdentity, section_text: str | None
) -> Pipeline | None:
    """The pipeline with the rule that is wanted, if its file has it, or can be read with what was written down."""
    candidates = [pipeline] if section_text is None else [pipeline, with_section(pipeline, section_text)]
    buckets = pipeline.identity.model_copy(update={"buckets": wanted.buckets})
    candidates.append(pipeline.model_copy(update={"identity": buckets}))
    for candidate in candidates:
        # Fields that this file does not declare, or declares otherwise, make other ids, or none.
        with suppress(ConfigurationError):
            if identity_of(candidate, catalog) == wanted:
                return candidate
    return None


def under_ledgers_rule(pipeline: Pipeline, catalog: Catalog) -> Pipeline | None:
    """The pipeline under the rule that holds, though its file may have the one that was asked for already."""
    known = catalog.identity()
    return pipeline if known is None else under_rule(pipeline, catalog, known, catalog.rule())


def under_requested_rule(pipeline: Pipeline, catalog: Catalog, request: Request) -> Pipeline | None:
    """The pipeline under the rule that was asked for."""
    section_text = request.arguments.get("rule")
    return under_rule(
        pipeline, catalog, rekey_target(request), None if section_text is None else str(section_text)
    )


def check_rule(pipeline: Pipeline, catalog: Catalog) -> None:
    """Refuse a rule that is neither the ledger's nor the one it is to be changed to."""
    if not catalog.exists() or (known := catalog.identity()) is None:
        return
    declared, waiting = identity_of(pipeline, catalog), open_rekey(catalog)
    if waiting is None:
        check_identity(pipeline.pipeline, known, declared)
    elif (
        declared not in (known, rekey_target(waiting))
        or under_requested_rule(pipeline, catalog, waiting) is None
    ):
        raise refuse_start(pipeline.pipeline)


def refuse_start(pipeline: str) -> ConfigurationError:
    return ConfigurationError(
        f"Pipeline {pipeline}: `oncehouse rekey` has asked for an identity rule that this pipeline file does not have, "
        "nor the fields for it. Nothing was changed. Start with the file that has the new rule, or take the request "
        "back with `oncehouse rekey --withdraw`."
    )


def adopt(pipeline: Pipeline, catalog: Catalog) -> None:
    """Enter the pipeline into its ledger; a change that was asked for is left to the holder of the lease."""
    if pending_rekey(catalog) is None:
        catalog.adopt(identity_of(pipeline, catalog), rule=format_section(pipeline))
