"""`oncehouse sync pipeline`: the files of syncs that the pipeline feeds from the database's log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oncehouse.cli.arguments import AsJson
from oncehouse.cli.messaging.cdc import (
    PASSWORD,
    Folder,
    MessagingOption,
    Partitions,
    Password,
    Prefix,
    WithoutFull,
    write_draft,
)
from oncehouse.cli.output import say, show_json
from oncehouse.cli.sync.options import Modules, Names
from oncehouse.common.json_documents import Answer
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehouse.messaging.cdc.generate import Draft
    from oncehouse.sync.model.model_sync import ModelSync


@dataclass(frozen=True, kw_only=True)
class SyncFiles(Answer, of=("sync pipeline",)):
    files: list[Path]
    warnings: tuple[str, ...]


def pipeline(
    names: Names = None,
    *,
    prefix: Prefix,
    module: Modules = None,
    folder: Folder = Path(),
    partitions: Partitions = 4,
    password: Password = PASSWORD,
    without_full: WithoutFull = False,
    file: MessagingOption = Path("messaging.yaml"),
    as_json: AsJson = False,
) -> None:
    """Write a connector's file, and a pipeline's for each sync with sync_storage = "cdc". Existing files are kept."""
    from oncehouse.messaging.cdc.connector_config import ConnectorTopics, check_prefix
    from oncehouse.messaging.cdc.source_database import describe_database, open_source
    from oncehouse.messaging.settings import load_messaging
    from oncehouse.sync.cdc.generate import draft_pipelines

    check_prefix(prefix)
    syncs, settings = _choose(module, names), load_messaging(file)
    servers = settings.require_kafka().bootstrap_servers
    with open_source(settings.require_database(), "looking at the tables of the syncs") as connection:
        draft = draft_pipelines(
            connection,
            syncs,
            prefix=prefix,
            database=describe_database(connection, password),
            topics=ConnectorTopics(partitions=partitions),
            bootstrap_servers=servers,
            without_full=without_full,
        )
    written = write_draft(draft, folder)
    if as_json:
        show_json(SyncFiles(files=written, warnings=draft.warnings))
        return
    _print_draft(draft, [sync.declaration().name for sync in syncs], written)


def _choose(module: list[str] | None, names: list[str] | None) -> list[type[ModelSync]]:
    from oncehouse.sync.discovery import find_syncs

    syncs = find_syncs(module or [], names or [])
    chosen = syncs if names else [sync for sync in syncs if sync.is_by_cdc()]
    if not chosen:
        raise ConfigurationError('no sync is fed by CDC; write sync_storage = "cdc" into the class of one')
    return chosen


def _print_draft(draft: Draft, names: list[str], written: list[Path]) -> None:
    connector, *pipelines = written
    say("wrote " + "\n      ".join(str(path) for path in written))
    for warning in draft.warnings:
        say(f"warning: {warning}")
    if PASSWORD in draft.files[connector.name]:
        say(f"Kafka Connect takes the database's password from {PASSWORD}: make it known to its workers")
    say("next:")
    say(f"  oncehouse cdc apply {connector}")
    say(f"  oncehouse sync apply {' '.join(names)}")
    for path in pipelines:
        say(f"  oncehouse run {path}")
