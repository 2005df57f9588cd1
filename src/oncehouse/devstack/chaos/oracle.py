"""What must hold at the end of a run: its tables equal those of a calm run of the same records, row by row.

The calm run is held to what the maker of the events knows: as many rows as there are different events, and the very
values of the identity where they are columns. The oracle also checks: all counts as in the calm run, nothing left
behind, nothing that `verify` complains about, sums in a materialized view behind each table that are the table's, and
the same bytes whenever a batch is sent again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncehouse.clickhouse.identifiers import quote, quote_table
from oncehouse.column_types import types as c
from oncehouse.column_types.parser import parse_type
from oncehouse.devstack.chaos.generators.text import format_scalar
from oncehouse.devstack.chaos.scenario_run import make_view
from oncehouse.ledger.catalog import batches
from oncehouse.ledger.models import Counts
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.maintenance.verify import verify

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client
    from oncehouse.config.pipeline import Table
    from oncehouse.devstack.chaos.event_factory import EventMaker
    from oncehouse.devstack.chaos.scenario_run import ScenarioRun

_SHOWN = 3
_COUNTED = ("read", "new", "duplicate", "dead_letter", "skipped", "waiting")
# Types that ClickHouse spells as `format_scalar` does.
_PLAIN = (c.Integer, c.String, c.Enum, c.Uuid)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What a calm run came to."""

    counts: Counts
    tables: Mapping[int, str]
    """By the place of the table in the file: its name in the calm run."""
    rows: int


def take_reference(run: ScenarioRun) -> Reference:
    tables = {at: table.name for at, table in enumerate(run.pipeline.tables)}
    return Reference(
        counts=run.counts(), tables=tables, rows=sum(run.rows(table) for table in tables.values())
    )


def evaluate(run: ScenarioRun, reference: Reference) -> list[str]:
    """All that differs from what must be."""
    if not run.has_ledger:
        return ["the ledger was never made"]
    client = run.client
    found: list[str] = []
    for at, table in enumerate(run.pipeline.tables):
        found += compare(client, table, calm=reference.tables[at])
    return [*found, *_compare_counts(run.counts(), reference.counts), *evaluate_ledger(run)]


def evaluate_ledger(run: ScenarioRun) -> Iterator[str]:
    """What the ledger says of itself."""
    yield from run.unloaded()[:_SHOWN]
    counts = run.counts()
    if not counts.balanced:
        yield f"the counts do not add up: {counts}"
    store = FileStore(run.pipeline.ledger.files)
    report = verify(run.pipeline, run.catalog, store, run.client, files=True)
    for finding in report.findings[:_SHOWN]:
        yield f"verify: {finding.kind}: {finding.where}: {finding.message}"
    yield from _evaluate_inserts(run)


def _evaluate_inserts(run: ScenarioRun) -> Iterator[str]:
    """What repeated inserts leave behind although the table dropped them."""
    client = run.client
    for table in run.pipeline.tables:
        for batch, rows, summed in client.query(make_view(table).mismatch_query)[:_SHOWN]:
            yield f"{table.name}: batch {batch} has {rows} rows, and the view behind the table counts {summed}"
    mine = {batch.batch_id for batch in batches.list_batches(run.catalog)}
    for batch in sorted(mine & run.environment.proxy.bodies.changed)[:_SHOWN]:
        yield f"batch {batch} was sent again with other bytes"


def _compare_counts(found: Counts, calm: Counts) -> Iterator[str]:
    for name in _COUNTED:
        here, there = getattr(found, name), getattr(calm, name)
        if here != there:
            yield f"{name.replace('_', ' ')}: {here} records, {there} in the calm run"


def compare(client: Client, table: Table, *, calm: str) -> Iterator[str]:
    """Rows by their content, all columns but the batch's; each as often as in the calm run."""
    columns = [name for name in _columns(client, table.name) if name != table.batch_column]
    content = f"sipHash128(tuple({', '.join(quote(name) for name in columns)}))"
    shown = f"hex({quote(table.id_column)})" if table.id_column else "''"
    rows = client.query(
        f"SELECT any(shown), sum(calm) AS before, sum(now) AS after FROM ("  # noqa: S608 - quoted names
        f"SELECT {content} AS content, {shown} AS shown, 1 AS calm, 0 AS now FROM {quote_table(calm)} UNION ALL "
        f"SELECT {content} AS content, {shown} AS shown, 0 AS calm, 1 AS now FROM {quote_table(table.name)}"
        f") GROUP BY content HAVING before != after"
    )
    lost = [(name, before - after) for name, before, after in rows if after < before]
    doubled = [(name, after - before) for name, before, after in rows if after > before > 0]
    unknown = [(name, after) for name, before, after in rows if before == 0]
    for word, places in (("lost", lost), ("doubled", doubled), ("other than in the calm run", unknown)):
        if places:
            ids = ", ".join(name.lower() for name, _ in places[:_SHOWN] if name)
            example = f", among them unique id {ids}" if ids else ""
            number = sum(count for _, count in places)
            yield f"{table.name}: {number} {'row' if number == 1 else 'rows'} {word}{example}"
    if table.id_column:
        ((count, unique),) = client.query(
            f"SELECT count(), uniqExact({quote(table.id_column)}) FROM {quote_table(table.name)}"  # noqa: S608
        )
        if count != unique:
            yield f"{table.name}: {count} rows of {unique} unique ids"


def _columns(client: Client, table: str) -> list[str]:
    return [str(row[0]) for row in client.query(f"DESCRIBE TABLE {quote_table(table)}")]


# The calm run itself


def evaluate_calm_run(
    run: ScenarioRun, *, identities: int | None, poison: int, maker: EventMaker | None
) -> list[str]:
    """Whether a run without faults came to what the records must come to."""
    counts, found = run.counts(), list(evaluate_ledger(run))
    if counts.dead_letter != poison:
        found.append(f"{counts.dead_letter} dead letters, and {poison} records of poison were sent")
    if identities is None or run.pipeline.shape.where is not None:
        return found
    for table in run.pipeline.tables:
        if table.route is not None:
            continue
        rows = run.rows(table.name)
        if rows != identities:
            found.append(f"{table.name}: {rows} rows, and {identities} different events were sent")
        elif maker is not None:
            found += _compare_identities(run, table, maker)
    return found


def _compare_identities(run: ScenarioRun, table: Table, maker: EventMaker) -> Iterator[str]:
    columns = table.columns or {name: name for name in run.pipeline.columns}
    of_field = {source: column for column, source in columns.items()}
    types = {name: parse_type(text) for name, text in run.pipeline.columns.items()}
    steps = list(maker.radices)
    if not steps or not all(len(one) == 1 and one[0] in of_field for one in steps):
        return
    fields = [one[0] for one in steps]
    if not all(isinstance(c.bare(types[name]), _PLAIN) for name in fields):
        return
    made = {
        tuple(format_scalar(types[name], value) for name, value in zip(fields, values.values(), strict=True))
        for values in map(maker.identity, range(maker.events))
    }
    texts = ", ".join(f"toString({quote(of_field[name])})" for name in fields)
    rows = run.client.query(f"SELECT {texts} FROM {quote_table(table.name)}")  # noqa: S608 - quoted
    there = {tuple(str(value) for value in row) for row in rows}
    if there != made:
        odd = sorted(made ^ there)[:_SHOWN]
        yield f"{table.name}: {len(made ^ there)} identities differ from those sent, among them {odd}"
