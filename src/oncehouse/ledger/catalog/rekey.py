"""Another identity rule in the catalog: prepared next to the one that holds, then put in its place, or given up.

What is prepared names new keys of key files, and segments of the new index; nothing reads them yet. One transaction
makes them the ledger's together with the rule, and only when no key file is left out. Parts, batches and positions of
duplicates stay as they were registered. Files that are no longer named are left as garbage for a while, because
another process may be reading them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    ScalarSelect,
    Select,
    and_,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from oncehouse.errors import PermanentError
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.row_mappers import file_values, finish_request_in, key_file_of, last_epoch_in
from oncehouse.ledger.catalog.schema import (
    garbage,
    key_files,
    leases,
    pipelines,
    rekeyed_files,
    rekeyed_segments,
    requests,
    segments,
)
from oncehouse.ledger.models import FileRef, KeyFile, LedgerIdentity, Segment, Stage

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
    counted = (func.count(), func.coalesce(func.sum(key_files.c.events), 0))
    held = select(*counted).where(key_files.c.pipeline == catalog.pipeline)
    done = select(*counted).select_from(_joined()).where(*_of_request(catalog, request))
    with catalog.read() as connection:
        all_files, events = connection.execute(held).one()
        files_done, events_done = connection.execute(done).one()
    return RekeyProgress(
        request=request,
        key_files=all_files,
        key_files_done=files_done,
        events=int(events),
        events_done=int(events_done),
    )


def count_unprepared(catalog: Catalog, request: int, *, since: int | None = None) -> int:
    """Events whose ids are still to be made.

    `since`: the epoch up to which they were made by who asks; key files are prepared in the order of their settling, so
    that all later ones are counted without a look at each.
    """
    left = _lacks(request) if since is None else or_(key_files.c.epoch > since, _lacks(request))
    query = select(func.coalesce(func.sum(key_files.c.events), 0)).where(
        key_files.c.pipeline == catalog.pipeline, key_files.c.epoch >= (since or 0), left
    )
    with catalog.read() as connection:
        return int(connection.execute(query).scalar_one())


def list_unprepared(
    catalog: Catalog, request: int, *, since: int | None = None, limit: int
) -> tuple[tuple[int, float, KeyFile], ...]:
    """(epoch, registered at, key file) of the first whose ids are still to be made, in the order of their settling."""
    query = (
        select(key_files)
        .where(key_files.c.pipeline == catalog.pipeline, key_files.c.epoch >= (since or 0), _lacks(request))
        .order_by(key_files.c.epoch, key_files.c.ordinal)
        .limit(limit)
    )
    with catalog.read() as connection:
        return tuple(
            (row.epoch, row.registered_at, key_file_of(row)) for row in connection.execute(query).all()
        )


def _lacks(request: int) -> ColumnElement[bool]:
    """Whether nothing is prepared for a key file.

    A scalar subquery, which is one look into an index for each: for an outer join PostgreSQL may choose nested loops
    over both tables where autovacuum has not yet seen how much was prepared.
    """
    found: ScalarSelect[int] = (
        select(rekeyed_files.c.request)
        .where(
            rekeyed_files.c.pipeline == key_files.c.pipeline,
            rekeyed_files.c.key_file == key_files.c.key_file,
            rekeyed_files.c.request == request,
        )
        .scalar_subquery()
    )
    return found.is_(None)


def _joined() -> Any:
    """Key files for which something is prepared."""
    same = and_(
        rekeyed_files.c.pipeline == key_files.c.pipeline, rekeyed_files.c.key_file == key_files.c.key_file
    )
    return key_files.join(rekeyed_files, same)


def _of_request(catalog: Catalog, request: int) -> tuple[ColumnElement[bool], ...]:
    return (rekeyed_files.c.pipeline == catalog.pipeline, rekeyed_files.c.request == request)


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
        _require_open(connection, catalog, request)
        _give_up_in(connection, catalog, keep=request)
        if rows:
            connection.execute(insert(rekeyed_files), rows)
        for segment in new:
            connection.execute(
                insert(rekeyed_segments).values(request=request, **_segment_values(catalog, segment))
            )

    catalog.write(Stage.INGEST, token, run)


def _require_open(connection: Connection, catalog: Catalog, request: int) -> None:
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
    for table, column in ((rekeyed_files, "keys_path"), (rekeyed_segments, "file_path")):
        gone = [table.c.pipeline == catalog.pipeline]
        if keep is not None:
            gone.append(table.c.request != keep)
        _discard(connection, catalog, select(table.c[column]).where(*gone))
        connection.execute(delete(table).where(*gone))


def _discard(connection: Connection, catalog: Catalog, named: Select[Any]) -> None:
    """Make the files that a query names garbage, in the database: there may be as many as key files."""
    (path,) = named.selected_columns
    known = (
        select(garbage.c.since)
        .where(garbage.c.pipeline == catalog.pipeline, garbage.c.file_path == path)
        .scalar_subquery()
    )
    now = catalog.latest_in(connection)
    found = (
        named.with_only_columns(literal(catalog.pipeline), path, literal(now))
        .where(path.is_not(None), known.is_(None))
        .distinct()
    )
    connection.execute(insert(garbage).from_select(["pipeline", "file_path", "since"], found))


def change_identity(
    catalog: Catalog, token: int, identity: LedgerIdentity, *, request: int, rule: str | None
) -> Change:
    """Put what was prepared in the place of what holds, with the new rule; refused while a key file is left out."""

    def run(connection: Connection) -> Change:
        _lock_out_packs(connection, catalog)
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
        finish_request_in(connection, catalog, request, format_change(change))
        for table in (rekeyed_files, rekeyed_segments):
            connection.execute(delete(table).where(table.c.pipeline == catalog.pipeline))
        return change

    return catalog.write(Stage.INGEST, token, run)


def has_changed(catalog: Catalog, token: int, identity: LedgerIdentity) -> bool:
    """Whether the ledger has this rule: for who does not know what became of a commit.

    Asked under the lease, so that a commit that is still under way on the server is waited for.
    """
    return catalog.write(Stage.INGEST, token, lambda connection: catalog.identity_in(connection) == identity)


def format_change(change: Change) -> str:
    made = f"the ids of {change.events} events" if change.events else "no ids"
    return f"{made} were computed again; the key index holds {change.keys} keys in {change.segments} segments"


def _lock_out_packs(connection: Connection, catalog: Catalog) -> None:
    """Wait for retention's transaction that is under way, and let none begin: packs move key files.

    Its lease is what each of them writes first. What is asked from here on sees what the last one did.
    """
    mine = (leases.c.pipeline == catalog.pipeline, leases.c.stage == Stage.RETENTION)
    connection.execute(select(leases.c.token).where(*mine).with_for_update())


def _replace_keys(connection: Connection, catalog: Catalog, request: int, *, same_ids: bool) -> int:
    """How many events have new ids. Reading waits for this: a few statements, however many key files there are."""
    held = key_files.c.pipeline == catalog.pipeline
    number, events = connection.execute(
        select(func.count(), func.coalesce(func.sum(key_files.c.events), 0)).where(held)
    ).one()
    if same_ids:
        done = connection.execute(
            select(func.count()).select_from(_joined()).where(*_of_request(catalog, request))
        ).scalar_one()
    else:
        _discard(connection, catalog, select(key_files.c.keys_path).where(held))
        done = connection.execute(
            update(key_files)
            .where(
                held,
                *_of_request(catalog, request),
                rekeyed_files.c.key_file == key_files.c.key_file,
                rekeyed_files.c.keys_path.is_not(None),
            )
            .values({name: rekeyed_files.c[name] for name in _PREFIXED})
        ).rowcount
    if done != number:
        raise PermanentError(
            f"Pipeline {catalog.pipeline}: {number - done} key files are not prepared for the new identity rule; "
            "nothing changed. Ask once more."
        )
    return 0 if same_ids else int(events)


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
