"""Over how many partitions of a table do rows spread? Counted by ClickHouse itself, over rows that are not inserted.

Each partition that an insert touches becomes a part of its own and takes a place in the table's memory of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from oncehouse.clickhouse.identifiers import quote
from oncehouse.clickhouse.preflight.finding import Finding, Level, objections
from oncehouse.clickhouse.preflight.table import PARTITIONS_AN_INSERT, check_window
from oncehouse.errors import OncehouseError, TransientError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncehouse.clickhouse.client import Client
    from oncehouse.clickhouse.preflight.requirements import Needs
    from oncehouse.clickhouse.table_info import TableFacts

_MOST_PARTITIONS = 100
"""More parts from one insert than this are too many for merges, whatever the server allows."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    rows: int
    partitions: int
    most: int
    """The user's max_partitions_per_insert_block; 0 allows any number."""


def count_partitions(client: Client, facts: TableFacts, rows: pa.Table) -> Spread | None:
    """None when the key cannot be computed from what is sent alone."""
    columns = [column for column in facts.columns if column.name in rows.column_names]
    structure = ", ".join(f"{quote(column.name)} {column.type}" for column in columns)
    sample = rows.select([column.name for column in columns]).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, sample.schema) as writer:
        writer.write_table(sample)
    try:
        # The key is the table's own definition, as the server has written it down.
        found = client.query_over(
            f"SELECT uniqExact(tuple({facts.partition_key})) FROM sample",  # noqa: S608
            name="sample",
            structure=structure,
            stream=sink.getvalue(),
        )
    except TransientError:
        raise
    except OncehouseError:
        return None
    most = client.query("SELECT value FROM system.settings WHERE name = 'max_partitions_per_insert_block'")
    return Spread(rows=rows.num_rows, partitions=int(found[0][0]), most=int(most[0][0]) if most else 0)


def check_spread(facts: TableFacts, spread: Spread | None, needs: Needs) -> Iterator[Finding]:
    where = f"{needs.table}: max_partitions_per_insert_block"
    if spread is None:
        yield Finding(
            level=Level.INFO,
            where=where,
            what=f"how rows spread over the partitions (PARTITION BY {facts.partition_key}) could not be tried",
            advice=f"`check` counts on {PARTITIONS_AN_INSERT} partitions an insert",
        )
        return
    limit = min(spread.most or _MOST_PARTITIONS, _MOST_PARTITIONS)
    figures = (
        f"{spread.rows} sampled rows fall into {spread.partitions} partitions (PARTITION BY "
        f"{facts.partition_key}), each of them a part of its own; an insert may touch {limit}"
    )
    if spread.partitions > limit:
        yield Finding(
            level=Level.ERROR,
            where=where,
            what=figures,
            advice="partition the table by less (a month, not an hour or an id), or make batches smaller with "
            "batch.max_rows",
        )
        return
    yield Finding(level=Level.OK, where=where, what=figures)
    wider = replace(needs.window, partitions_per_insert=max(spread.partitions, 1))
    yield from objections(check_window(facts, wider, table=needs.table))
