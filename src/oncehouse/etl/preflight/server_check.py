"""What `etl check` finds about the server and its user: settings that a profile fixes, tables on several hosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from oncehouse.clickhouse.preflight.finding import Finding, Level
from oncehouse.clickhouse.preflight.server import check_forced, check_readonly
from oncehouse.clickhouse.server_info import read_forced_settings, read_readonly
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.state.models import Offset
from oncehouse.etl.steps.exact_settings import required_settings
from oncehouse.etl.steps.replication import TableReplication, explain_one_sided, read_replication

if TYPE_CHECKING:
    from oncehouse.clickhouse.client import Client


def inspect_server(
    client: Client, lineage: Sequence[Topic], *, has_local_offsets: bool
) -> tuple[Finding, ...]:
    """`has_local_offsets`: positions are kept in a table of one server (EmbeddedRocksDB)."""
    spreads = read_replication(client, [topic.dst for topic in lineage if not topic.is_source])
    return (
        *_evaluate_user(client),
        *(finding for topic in lineage for finding in evaluate_replication(topic, spreads.get(topic.dst))),
        *(evaluate_local_offsets(spreads) if has_local_offsets else ()),
    )


def _evaluate_user(client: Client) -> Iterator[Finding]:
    if (readonly := read_readonly(client)) != "0":
        yield check_readonly(client.config.user, readonly)
        return  # every setting is fixed then
    for forced in read_forced_settings(client, required_settings()):
        yield check_forced(forced)


def evaluate_declarations(lineage: Sequence[Topic], offsets: Mapping[str, Offset]) -> Iterator[Finding]:
    for topic in lineage:
        row = offsets.get(topic.topic)
        if row is not None and row.is_pipeline_declaration and not topic.is_source:
            yield Finding(
                level=Level.ERROR,
                where=topic.topic,
                what=f"{row.consumer} has declared it as a source, and it is built: none of it is",
                advice=f"let tables[].declare.topic of that pipeline name the source's own topic, then `oncehouse etl "
                f"seek {topic.topic} start`",
            )


def evaluate_replication(topic: Topic, spread: TableReplication | None) -> Iterator[Finding]:
    one_sided = None if spread is None or topic.is_source else explain_one_sided(topic, spread)
    if one_sided is not None:
        what, advice = one_sided
        yield Finding(level=Level.ERROR, where=topic.topic, what=what, advice=advice)


def evaluate_local_offsets(spreads: dict[str, TableReplication]) -> Iterator[Finding]:
    spread = [table for table, one in spreads.items() if one.replicas > 1]
    if spread:
        yield Finding(
            level=Level.WARNING,
            where="offsets.store",
            what=f"rocksdb keeps positions on one server, and {', '.join(sorted(spread)[:3])} "
            "stand on several: a host that is sent to another server would build all of it a second time",
            advice="use `offsets: {store: keepermap}`, or let `clickhouse.url` name one server, never a balancer",
        )
