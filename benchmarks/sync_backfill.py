"""Rows a second of a backfill, and of a verification of what it made, of mapped classes with keys of several kinds.

    python benchmarks/sync_backfill.py [--rows 200000]

Real PostgreSQL and ClickHouse of its own, the default settings. The figures hang on the machine; the kinds of keys can
be compared with each other.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from sqlalchemy import Numeric, String, create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from oncehouse.devstack.stack import Stack
from oncehouse.sync.backfill.backfill import backfill
from oncehouse.sync.sqlalchemy import Collapsing, ModelSync, configure
from oncehouse.sync.table.ddl import apply_plan, plan_table
from oncehouse.sync.tables import create_tables
from oncehouse.sync.verify.verify import verify


class Base(DeclarativeBase):
    pass


class Values:
    name: Mapped[str]
    total: Mapped[Decimal] = mapped_column(Numeric(12, 2))
    note: Mapped[str | None]
    placed_at: Mapped[datetime]
    paid: Mapped[bool]


class ByNumber(Values, Base):
    __tablename__ = "by_number"
    id: Mapped[int] = mapped_column(primary_key=True)


class ByUuid(Values, Base):
    __tablename__ = "by_uuid"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)


class ByTwo(Values, Base):
    __tablename__ = "by_two"
    shop: Mapped[str] = mapped_column(String(10), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)


class NumberSync(ModelSync):
    model = ByNumber


class UuidSync(ModelSync):
    model = ByUuid


class TwoSync(ModelSync):
    model = ByTwo


class CollapsingSync(ModelSync):
    model = ByNumber
    table = "collapsing"
    engine = Collapsing()


SYNCS = (NumberSync, UuidSync, TwoSync, CollapsingSync)
KEYS = {"by_number": "n", "by_uuid": "gen_random_uuid()", "by_two": "'shop' || n % 10, n"}


def fill(url: str, rows: int) -> None:
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        create_tables(connection)
        for table, key in KEYS.items():
            columns = "shop, number" if table == "by_two" else "id"
            connection.execute(
                text(
                    f"INSERT INTO {table} ({columns}, name, total, note, placed_at, paid) SELECT {key}, "
                    "'customer ' || n, n / 100.0, CASE WHEN n % 3 = 0 THEN 'note ' || n END, :now, n % 2 = 0 "
                    "FROM generate_series(1, :rows) AS n"
                ),
                {"now": datetime.now(UTC).replace(tzinfo=None), "rows": rows},
            )
    engine.dispose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    rows = parser.parse_args().rows
    folder = Path(tempfile.mkdtemp(prefix="oncehouse-bench-backfill-"))
    stack = Stack(folder=folder)
    try:
        stack.up(["postgres", "clickhouse"])
        fill(stack.postgres.url, rows)
        configure(stack.postgres.url, CLICKHOUSE_DATABASES={"default": {"db_url": stack.clickhouse.url}})
        print(f"{rows:,} rows of 6 or 7 columns\n{'':16}{'backfill':>14}{'verify':>14}")
        for sync in SYNCS:
            client = sync.open_clickhouse()
            apply_plan(client, plan_table(client, sync.declaration()))
            filled = backfill(sync)
            started = time.perf_counter()
            report = verify(sync)
            seconds = time.perf_counter() - started
            if not report.is_clean or report.rows != rows or filled.rows != rows:
                raise SystemExit(f"{sync.__name__}: not all rows arrived: {report}")
            print(f"{sync.__name__:16}{rows / filled.seconds:>12,.0f}/s{rows / seconds:>12,.0f}/s")
    finally:
        stack.down()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
