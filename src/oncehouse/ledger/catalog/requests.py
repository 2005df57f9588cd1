"""Requests: what a person asks of a pipeline and only the holder of the ingest lease may perform.

A request is written down by the CLI, performed between epochs, and marked done in the same transaction that
makes its effect exist.
"""

from __future__ import annotations

import json

from sqlalchemy import ColumnElement, Connection, func, insert, select, update

from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.row_mappers import finish_request_in
from oncehouse.ledger.catalog.schema import requests
from oncehouse.ledger.models import LedgerIdentity, Request, RequestKind, Stage


def add_request(catalog: Catalog, kind: RequestKind, arguments: dict[str, object]) -> int:
    return catalog.change(lambda connection: add_request_in(connection, catalog, kind, arguments))


def add_request_in(
    connection: Connection, catalog: Catalog, kind: RequestKind, arguments: dict[str, object]
) -> int:
    number = connection.execute(
        select(func.coalesce(func.max(requests.c.request), 0)).where(requests.c.pipeline == catalog.pipeline)
    ).scalar_one()
    connection.execute(
        insert(requests).values(
            pipeline=catalog.pipeline,
            request=number + 1,
            kind=kind,
            arguments=json.dumps(arguments),
            created_at=catalog.clock,
        )
    )
    return int(number) + 1


def open_requests(catalog: Catalog) -> tuple[Request, ...]:
    return _read_requests(catalog, requests.c.done_at.is_(None))


def list_requests(catalog: Catalog) -> tuple[Request, ...]:
    return _read_requests(catalog)


def _read_requests(catalog: Catalog, *which: ColumnElement[bool]) -> tuple[Request, ...]:
    mine = requests.c.pipeline == catalog.pipeline
    with catalog.read() as connection:
        rows = connection.execute(select(requests).where(mine, *which).order_by(requests.c.request)).all()
    return tuple(
        Request(
            request=row.request,
            kind=RequestKind(row.kind),
            arguments=json.loads(row.arguments),
            created_at=row.created_at,
            done_at=row.done_at,
            result=row.result,
        )
        for row in rows
    )


def finish_request(catalog: Catalog, token: int, request: int, result: str) -> None:
    """For a request that changed nothing: say so."""

    def run(connection: Connection) -> None:
        finish_request_in(connection, catalog, request, result)

    catalog.write(Stage.INGEST, token, run)


def withdraw_requests(catalog: Catalog, kind: RequestKind) -> tuple[int, ...]:
    """Take back what was not performed yet; returns the numbers."""

    def run(connection: Connection) -> tuple[int, ...]:
        waiting = (
            requests.c.pipeline == catalog.pipeline,
            requests.c.kind == kind,
            requests.c.done_at.is_(None),
        )
        numbers = connection.execute(select(requests.c.request).where(*waiting)).scalars().all()
        connection.execute(update(requests).where(*waiting).values(done_at=catalog.clock, result="withdrawn"))
        return tuple(numbers)

    return catalog.change(run)


def open_rekey(catalog: Catalog) -> Request | None:
    """The request to change the identity rule; there is never more than one that counts."""
    return next((found for found in open_requests(catalog) if found.kind is RequestKind.REKEY), None)


def pending_rekey(catalog: Catalog) -> LedgerIdentity | None:
    """The identity rule that a request wants the ledger to have."""
    request = open_rekey(catalog)
    return None if request is None else rekey_target(request)


def rekey_target(request: Request) -> LedgerIdentity:
    arguments = request.arguments
    return LedgerIdentity(fingerprint=str(arguments["fingerprint"]), buckets=int(str(arguments["buckets"])))
