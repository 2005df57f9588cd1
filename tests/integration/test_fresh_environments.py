"""The core, `messaging` and `etl` alone, each installed into an environment of its own and used there.

`tests/unit/common/test_extras.py` is the short form: it blocks the packages of other extras and imports every module.
"""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import old_ledger

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(folder), str(ROOT)], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def install(wheel, tmp_path) -> Callable[[str], Run]:
    """`install("messaging")`: a new environment; the answer runs a program of it in the folder of the test."""

    def make(extras: str) -> Run:
        folder = tmp_path / "environment"
        venv.create(folder, with_pip=True)
        # A wheel of this checkout has no hash, so the pinned versions are given without theirs.
        pins = re.findall(
            r"(?m)^[\w.-]+==\S+(?: ;[^\\\n]*)?", (ROOT / "requirements" / "dev.txt").read_text()
        )
        constraints = tmp_path / "constraints.txt"
        constraints.write_text("\n".join(pins))
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--constraint", constraints, f"{wheel}{extras and f'[{extras}]'}"], check=True)

        def run(program: str, *arguments: str, expected: int = 0) -> subprocess.CompletedProcess[str]:
            done = subprocess.run(
                [folder / "bin" / program, *arguments],
                cwd=tmp_path,
                env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == expected, done.stdout + done.stderr
            return done

        return run

    return make


def test_the_core_writes_a_pipeline_file_and_reads_a_catalog(install, tmp_path):
    run = install("")
    run("oncehouse", "init")
    assert "GRANT" in run("oncehouse", "grants").stdout
    missing = run("oncehouse", "run", expected=2)
    assert "pip install 'oncehouse[pipeline]'" in missing.stderr
    ledger = old_ledger.unpack(tmp_path / "old")
    file = tmp_path / "pipeline.yaml"
    document = yaml.safe_load(file.read_text())
    document["pipeline"] = old_ledger.PIPELINE
    document["ledger"] = {"catalog": ledger.url, "files": str(ledger.folder / "files")}
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    run("oncehouse", "upgrade")
    assert "ingest" in run("oncehouse", "leases").stdout


SEND = """
from sqlalchemy import create_engine
from oncehouse.messaging import Outbox

engine = create_engine("sqlite:///shop.db")
with engine.begin() as connection:
    Outbox().add(connection, TOPIC, key=b"7", value=b"paid")
"""

RECEIVE = """
from oncehouse.messaging import Consumer
from oncehouse.messaging.consumer import Batch

consumer = Consumer(bootstrap_servers=SERVERS, group="environment")


@consumer.batch(TOPIC, size=1, wait=0.1)
def store(batch: Batch) -> None:
    print(batch.values, flush=True)
    consumer.stop()


consumer.run()
"""


def test_messaging_alone_sends_what_a_transaction_committed(install, kafka, topic, tmp_path):
    run = install("messaging")
    name = topic(partitions=1)
    settings = {"kafka": {"bootstrap_servers": kafka.bootstrap_servers}, "database": "sqlite:///shop.db"}
    (tmp_path / "messaging.yaml").write_text(yaml.safe_dump(settings))
    run("oncehouse", "outbox", "init", "--yes")
    names = f"TOPIC, SERVERS = {name!r}, {kafka.bootstrap_servers!r}\n"
    run("python", "-c", names + SEND)
    assert "sent 1" in run("oncehouse", "outbox", "relay", "--once").stdout
    assert "sent 0" in run("oncehouse", "outbox", "relay", "--once").stdout
    assert run("python", "-c", names + RECEIVE).stdout == "[b'paid']\n"


def test_the_scheduler_alone_builds_a_fact(install, clickhouse, clickhouse_client, database, tmp_path):
    for statement in (
        f"CREATE TABLE {database}.stage (id UInt64, pos DateTime64(3)) ENGINE = MergeTree ORDER BY (pos, id)",
        f"CREATE TABLE {database}.fact AS {database}.stage SETTINGS non_replicated_deduplication_window = 1000",
        f"INSERT INTO {database}.stage SELECT number, now64(3) - 7200 + number FROM numbers(100)",
    ):
        clickhouse_client.command(statement)
    run = install("etl")
    settings = {
        "clickhouse": {"url": f"http://127.0.0.1:{clickhouse.place.ports['http']}"},
        "database": f"{database}_etl",
        "offsets": {"store": "rocksdb"},
    }
    (tmp_path / "etl.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "lineage").mkdir()
    topics = [
        {"topic": "Stage", "dst": f"{database}.stage"},
        {"topic": "Fact", "dst": f"{database}.fact", "depends_on": [f"{database}.stage"]},
    ]
    (tmp_path / "lineage" / "shop.yaml").write_text(yaml.safe_dump({"topics": topics}))
    try:
        run("oncehouse", "etl", "init", "--yes")
        clickhouse_client.command(
            f"CREATE VIEW {database}_etl.FactTransform AS SELECT id, pos FROM {database}.stage "
            "WHERE (pos, id) > ({last_time:DateTime64(3)}, {last_id:UInt64}) "
            "AND (pos, id) <= ({next_time:DateTime64(3)}, {next_id:UInt64})"
        )
        run("oncehouse", "etl", "run", "--once")
        rows = clickhouse_client.query(f"SELECT count() FROM {database}.fact").result_rows
        assert rows == [(100,)]
    finally:
        clickhouse_client.command(f"DROP DATABASE IF EXISTS {database}_etl SYNC")
