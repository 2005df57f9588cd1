"""Where one Kafka position stands in the catalog: the epoch that settled it, and the files that may hold it."""

from __future__ import annotations

from sqlalchemy import and_, or_, select

from oncehouse.ledger.catalog.batches import part_of
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.row_mappers import epoch_of, key_file_of
from oncehouse.ledger.catalog.schema import epochs, key_files, parts, ranges
from oncehouse.ledger.models import EpochKind, EpochRow, Part
from oncehouse.ledger.stats.ledger_state import RegisteredKeyFile

_TRIED_AGAIN = (EpochKind.REPLAY, EpochKind.WAITING)


def find_epoch(catalog: Catalog, topic: str, partition: int, offset: int) -> int | None:
    """The epoch that settled this offset; None where none has, `history.ROLLED_UP` where it is past the window."""
    query = select(ranges.c.epoch).where(
        ranges.c.pipeline == catalog.pipeline,
        ranges.c.topic == topic,
        ranges.c.partition_id == partition,
        ranges.c.start_offset <= offset,
        ranges.c.end_offset > offset,
    )
    with catalog.read() as connection:
        return connection.execute(query).scalar()


def read_epoch(catalog: Catalog, epoch: int) -> EpochRow | None:
    query = select(epochs).where(epochs.c.pipeline == catalog.pipeline, epochs.c.epoch == epoch)
    with catalog.read() as connection:
        row = connection.execute(query).first()
    return None if row is None else epoch_of(row)


def list_files_of(catalog: Catalog, epoch: int) -> tuple[RegisteredKeyFile, ...]:
    """Key files of an epoch, and of later ones that tried records again which had not become rows then."""
    query = (
        select(key_files)
        .join(epochs, and_(epochs.c.pipeline == key_files.c.pipeline, epochs.c.epoch == key_files.c.epoch))
        .where(
            key_files.c.pipeline == catalog.pipeline,
            or_(
                key_files.c.epoch == epoch,
                and_(key_files.c.epoch > epoch, epochs.c.kind.in_([str(kind) for kind in _TRIED_AGAIN])),
            ),
        )
        .order_by(key_files.c.epoch, key_files.c.ordinal)
    )
    with catalog.read() as connection:
        return tuple(
            RegisteredKeyFile(epoch=row.epoch, registered_at=row.registered_at, key_file=key_file_of(row))
            for row in connection.execute(query).all()
        )


def list_parts_of(catalog: Catalog, key_file: str) -> tuple[Part, ...]:
    """Parts made of the events of a key file, those of refills included."""
    query = (
        select(parts)
        .where(parts.c.pipeline == catalog.pipeline, parts.c.key_file == key_file)
        .order_by(parts.c.epoch, parts.c.ordinal, parts.c.part)
    )
    with catalog.read() as connection:
        return tuple(part_of(row) for row in connection.execute(query).all())
