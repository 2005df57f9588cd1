"""Another identity rule in the catalog: prepared beside the one that holds, then put in its place, or given up.

What is prepared names new keys of key files, and segments of the new index; nothing reads them yet. One transaction
makes them the ledger's together with the rule, and only when no key file is left out. Parts, batches and positions of
duplicates stay as they were registered. Files that are no longer named are left as garbage for a while, because
somebody may be reading them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, select, update

from oncehouse.errors import PermanentError
from oncehouse.ledger.catalog import Catalog
from oncehouse.ledger.records import FileRef, Identity, KeyFile, Segment, Stage
from oncehouse.ledger.rows import file_values, finish_request_in, key_file_of, last_epoch_in
from oncehouse.ledger.tables import (
    garbage,
    key_files,
    pipelines,
    rekeyed_files,
    rekeyed_segments,
    requests,
    segments,
)

_PREFIXED = ("keys_path", "keys_bytes", "keys_checksum", "keys_row")


@dataclass(frozen=True, kw_only=True)
class RekeyProgress:
    """How far a change has come; events are those that the ledger keeps now."""

    request: int
    key_files: int
    key_files_done: int
    events: int
    events_done: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """What the change has made of the ledger."""

    events: int
    keys: int
    segments: int


def read_progress(catalog: Catalog, request: int) -> RekeyProgress:
    asked = (
        select(
            func.count(),
            func.coalesce(func.sum(key_files.c.events), 0),
            func.count(rekeyed_files.c.key_file),
            func.coalesce(func.sum(rekeyed_files.c.events), 0),
        )
        .select_from(_joined(request))
        .where(key_files.c.pipeline == catalog.pipeline)
    )
    with catalog.read() as connection:
        all_files, events, files_done, events_done = connection.execute(asked).one()
    return RekeyProgress(
        request=request,
        key_files=all_files,
        key_files_done=files_done,
        events=int(events),
        events_done=int(events_done),
    )


def list_unprepared(catalog: Catalog, request: int) -> tuple[tuple[int, float, KeyFile], ...]:
    """(epoch, registered at, key file) of those whose ids are still to be made, in the order of their settling."""
    asked = (
        select(key_files)
        .select_from(_joined(request))
        .where(key_files.c.pipeline == catalog.pipeline, rekeyed_files.c.key_file.is_(None))
        .order_by(key_files.c.epoch, key_files.c.ordinal)
    )
    with catalog.read() as connection:
        return tuple(
            (row.epoch, row.registered_at, key_file_of(row)) for row in connection.execute(asked).all()
        )


def _joined(request: int) -> Any:
    """Key files, with what is prepared for them beside."""
    same = and_(
        rekeyed_files.c.pipeline == key_files.c.pipeline,
        rekeyed_files.c.key_file == key_files.c.key_file,
        rekeyed_files.c.request == request,
    )
    return key_files.outerjoin(rekeyed_files, same)


def note_prepared(
    catalog: Catalog,
    token: int,
    request: int,
    made: Iterable[tuple[KeyFile, FileRef | None]],
    new: Sequence[Segment],
) -> None:
    """Remember new keys (None: they stay) and segments, unless the request is not open any more."""
    rows = [
        {"pipeline": catalog.pipeline, "key_file": found.key_file, "request": request, "events": found.events}
        | (dict.fromkeys(_PREFIXED) if file is None else file_values("keys", file))
        for found, file in made
    ]

    def run(connection: Connection) -> None:
        _demand_open(connection, catalog, request)
        _give_up_in(connection, catalog, keep=request)
        if rows:
            connection.execute(insert(rekeyed_files), rows)
        for segment in new:
            connection.execute(
                insert(rekeyed_segments).values(request=request, **_segment_values(catalog, segment))
            )

    catalog.write(Stage.INGEST, token, run)


def _demand_open(connection: Connection, catalog: Catalog, request: int) -> None:
    mine = (requests.c.pipeline == catalog.pipeline, requests.c.request == request)
    if (
        connection.execute(select(requests.c.request).where(*mine, requests.c.done_at.is_(None))).first()
        is None
    ):
        raise PermanentError(
            f"Pipeline {catalog.pipeline}: request {request} is unknown or done already; nothing was written."
        )


def _segment_values(catalog: Catalog, segment: Segment) -> dict[str, object]:
    return {
        "pipeline": catalog.pipeline,
        "segment": segment.segment,
        "bucket_from": segment.bucket_from,
        "bucket_to": segment.bucket_to,
        "keys_total": segment.keys,
        "first_seen_from": segment.first_seen_from,
        "first_seen_to": segment.first_seen_to,
        **file_values("file", segment.file),
    }


def prepared_paths(catalog: Catalog) -> set[str]:
    """The files that were written for a change that has not taken effect."""
    with catalog.read() as connection:
        found = [
            connection.execute(select(column).where(table.c.pipeline == catalog.pipeline)).scalars().all()
            for table, column in (
                (rekeyed_files, rekeyed_files.c.keys_path),
                (rekeyed_segments, rekeyed_segments.c.file_path),
            )
        ]
    return {path for paths in found for path in paths if path is not None}


def give_up(catalog: Catalog, token: int, *, keep: int | None = None) -> None:
    """Forget what was prepared for other requests than this one; its files become garbage."""
    with catalog.read() as connection:
        mine = select(rekeyed_files.c.request).where(rekeyed_files.c.pipeline == catalog.pipeline).distinct()
        known = set(connection.execute(mine).scalars())
    if known - {keep}:
        catalog.write(Stage.INGEST, token, lambda connection: _give_up_in(connection, catalog, keep=keep))


def _give_up_in(connection: Connection, catalog: Catalog, *, keep: int | None) -> None:
    paths: set[str] = set()
    for table, column in ((rekeyed_files, "keys_path"), (rekeyed_segments, "file_path")):
        gone = [table.c.pipeline == catalog.pipeline]
        if keep is not None:
            gone.append(table.c.request != keep)
        paths |= {path for path in connection.execute(select(table.c[column]).where(*gone)).scalars() if path}
        connection.execute(delete(table).where(*gone))
    _discard(connection, catalog, paths)


def _discard(connection: Connection, catalog: Catalog, paths: Iterable[str]) -> None:
    now = catalog.latest_in(connection)
    rows = [{"pipeline": catalog.pipeline, "file_path": path, "since": now} for path in sorted(paths)]
    if rows:
        connection.execute(insert(garbage), rows)


def change_identity(
    catalog: Catalog, token: int, identity: Identity, *, request: int, rule: str | None
) -> Change:
    """Put what was prepared in the place of what holds, with the new rule; refused while a key file is left out."""

    def run(connection: Connection) -> Change:
        known = catalog.identity_in(connection)
        same_ids = known is not None and known.fingerprint == identity.fingerprint
        events = _replace_keys(connection, catalog, request, same_ids=same_ids)
        keys, number = _replace_segments(connection, catalog, request)
        connection.execute(
            update(pipelines)
            .where(pipelines.c.pipeline == catalog.pipeline)
            .values(fingerprint=identity.fingerprint, buckets=identity.buckets, rule=rule)
        )
        change = Change(events=events, keys=keys, segments=number)
        finish_request_in(connection, catalog, request, spell_change(change))
        for table in (rekeyed_files, rekeyed_segments):
            connection.execute(delete(table).where(table.c.pipeline == catalog.pipeline))
        return change

    return catalog.write(Stage.INGEST, token, run)


def spell_change(change: Change) -> str:
    made = f"the ids of {change.events} events" if change.events else "no ids"
    return f"{made} were made anew; the key index holds {change.keys} keys in {change.segments} segments"


def _replace_keys(connection: Connection, catalog: Catalog, request: int, *, same_ids: bool) -> int:
    """How many events have new ids."""
    lacking = rekeyed_files.c.key_file if same_ids else rekeyed_files.c.keys_path
    left = connection.execute(
        select(func.count())
        .select_from(_joined(request))
        .where(key_files.c.pipeline == catalog.pipeline, lacking.is_(None))
    ).scalar_one()
    if left:
        raise PermanentError(
            f"Pipeline {catalog.pipeline}: {left} key files are not prepared for the new identity rule; nothing "
            "changed. Ask once more."
        )
    prepared = (
        rekeyed_files.c.pipeline == key_files.c.pipeline,
        rekeyed_files.c.key_file == key_files.c.key_file,
        rekeyed_files.c.keys_path.is_not(None),
    )
    moved = (
        key_files.c.pipeline == catalog.pipeline,
        select(rekeyed_files.c.key_file).where(*prepared).exists(),
    )
    old = set(connection.execute(select(key_files.c.keys_path).where(*moved).distinct()).scalars())
    events = connection.execute(
        select(func.coalesce(func.sum(key_files.c.events), 0)).where(*moved)
    ).scalar_one()
    # One statement for all of them: this is what the pipeline waits for.
    connection.execute(
        update(key_files)
        .where(*moved)
        .values(
            {name: select(rekeyed_files.c[name]).where(*prepared).scalar_subquery() for name in _PREFIXED}
        )
    )
    _discard(connection, catalog, old)
    return int(events)


def _replace_segments(connection: Connection, catalog: Catalog, request: int) -> tuple[int, int]:
    """(keys, segments) of the index from now on."""
    connection.execute(
        update(segments)
        .where(segments.c.pipeline == catalog.pipeline, segments.c.replaced_at.is_(None))
        .values(replaced_at=catalog.clock, replaced_after_epoch=last_epoch_in(connection, catalog))
    )
    names = [column.name for column in rekeyed_segments.c if column.name != "request"]
    mine = (rekeyed_segments.c.pipeline == catalog.pipeline, rekeyed_segments.c.request == request)
    connection.execute(
        insert(segments).from_select(
            names, select(*(rekeyed_segments.c[name] for name in names)).where(*mine)
        )
    )
    keys, number = connection.execute(
        select(func.coalesce(func.sum(rekeyed_segments.c.keys_total), 0), func.count()).where(*mine)
    ).one()
    return int(keys), int(number)
