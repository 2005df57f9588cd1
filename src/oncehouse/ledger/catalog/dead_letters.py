"""Open dead letters in the catalog: how many there are of each reason, the newest files first, and edits of them.

There may be a hundred thousand files of dead letters: the database adds them up, and no more is read than is shown.
`epochs.list_dead_letter_files` reads all files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from sqlalchemy import ColumnElement, Connection, and_, func, insert, or_, select

from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.requests import add_request_in
from oncehouse.ledger.catalog.row_mappers import dead_letter_file_of, file_values
from oncehouse.ledger.catalog.schema import dead_letter_files
from oncehouse.ledger.models import DeadLetterFile, DeadLetterKind, RequestKind

_FILES_A_QUERY = 128
_LONGEST_NAME = 64


def count_reasons(catalog: Catalog) -> dict[str, int]:
    """Open dead letters by reason, by its name. What waits is counted by `stats/awaited_schemas.py`."""
    query = (
        select(dead_letter_files.c.reasons, func.count())
        .where(*are_open(catalog, DeadLetterKind.DEAD))
        .group_by(dead_letter_files.c.reasons)
    )
    counted: dict[str, int] = {}
    with catalog.read() as connection:
        for reasons, files in connection.execute(query).all():
            for reason, rows in json.loads(reasons).items():
                counted[reason] = counted.get(reason, 0) + rows * files
    return dict(sorted(counted.items()))


def find_open_file(catalog: Catalog, name: str) -> DeadLetterFile | None:
    """`name` may be anything: it comes out of an address."""
    if not (name.isascii() and name.isprintable() and len(name) <= _LONGEST_NAME):
        return None
    query = select(dead_letter_files).where(
        *are_open(catalog, DeadLetterKind.DEAD), dead_letter_files.c.dead_letter_file == name
    )
    with catalog.read() as connection:
        row = connection.execute(query).first()
    return None if row is None else dead_letter_file_of(row)


def walk_newest_files(
    catalog: Catalog, *, reason: str | None = None, start: DeadLetterFile | None = None
) -> Iterator[DeadLetterFile]:
    """Files of open dead letters from the newest on, or from `start` on; those without the reason are left out."""
    names = dead_letter_files.c.dead_letter_file
    query = select(dead_letter_files).where(*are_open(catalog, DeadLetterKind.DEAD))
    if reason is not None:
        # As it stands in the text. No LIKE: a reason may hold its wildcards.
        encoded = json.dumps(reason)
        query = query.where(
            func.replace(dead_letter_files.c.reasons, encoded, "") != dead_letter_files.c.reasons
        )
    newest = query.order_by(dead_letter_files.c.epoch.desc(), names.desc()).limit(_FILES_A_QUERY)
    page = newest if start is None else newest.where(_up_to(start, names <= start.dead_letter_file))
    while True:
        with catalog.read() as connection:
            found = [dead_letter_file_of(row) for row in connection.execute(page).all()]
        yield from (file for file in found if reason is None or file.reasons.get(reason))
        if len(found) < _FILES_A_QUERY:
            return
        last = found[-1]
        page = newest.where(_up_to(last, names < last.dead_letter_file))


def _up_to(last: DeadLetterFile, same_epoch: ColumnElement[bool]) -> ColumnElement[bool]:
    epoch = dead_letter_files.c.epoch
    # The first comparison is the one that an index answers.
    return and_(epoch <= last.epoch, or_(epoch < last.epoch, same_epoch))


def are_open(catalog: Catalog, kind: DeadLetterKind) -> tuple[ColumnElement[bool], ...]:
    """What holds of the files of letters that were not tried again."""
    return (
        dead_letter_files.c.pipeline == catalog.pipeline,
        dead_letter_files.c.kind == kind,
        dead_letter_files.c.tried_in_epoch.is_(None),
    )


def add_edits(catalog: Catalog, edits: Sequence[DeadLetterFile]) -> int:
    """Name files of edited dead letters and ask for their retry, in one transaction.

    Edits of one command share a prefix.
    """
    arguments: dict[str, object] = {
        "edits": edits[0].dead_letter_file.partition("-")[0],
        "letters": sum(found.rows for found in edits),
    }

    def run(connection: Connection) -> int:
        for found in edits:
            connection.execute(
                insert(dead_letter_files).values(
                    pipeline=catalog.pipeline,
                    dead_letter_file=found.dead_letter_file,
                    kind=DeadLetterKind.EDIT,
                    epoch=found.epoch,
                    rows_total=found.rows,
                    reasons=json.dumps(found.reasons),
                    registered_at=catalog.clock,
                    **file_values("file", found.file),
                )
            )
        return add_request_in(connection, catalog, RequestKind.EDIT_DEAD_LETTERS, arguments)

    return catalog.change(run)
