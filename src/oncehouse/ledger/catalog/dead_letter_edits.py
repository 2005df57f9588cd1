"""Edits of dead letters in the catalog: the files that hold them, and the request to try them, written together."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import Connection, insert

from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.requests import add_request_in
from oncehouse.ledger.catalog.row_mappers import file_values
from oncehouse.ledger.catalog.schema import dead_letter_files
from oncehouse.ledger.models import DeadLetterFile, LetterKind, RequestKind


def add_edits(catalog: Catalog, edits: Sequence[DeadLetterFile]) -> int:
    """Name files of edited letters, and ask for their trial. What was edited together is named alike."""
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
                    kind=LetterKind.EDIT,
                    epoch=found.epoch,
                    rows_total=found.rows,
                    reasons=json.dumps(found.reasons),
                    registered_at=catalog.clock,
                    **file_values("file", found.file),
                )
            )
        return add_request_in(connection, catalog, RequestKind.EDIT_DEAD_LETTERS, arguments)

    return catalog.change(run)
