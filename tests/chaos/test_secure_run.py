"""A whole run over SASL, TLS and HTTPS under strange names, and afterwards a search for its secrets everywhere."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from clickhouse_users import PASSWORD
from live_pipeline import FIELDS, encode, make_event, wait_until
from live_pipeline import LivePipeline as Oracle
from oncehouse.devstack.jars import connector_jars
from secure_servers import SCRAM_PASSWORD, USER, TlsProxy, free_ports

SPARK_SECRET = "c4nary-of-spark"
SECRETS = (SCRAM_PASSWORD, PASSWORD, SPARK_SECRET)
TABLE, FIELD = "it's `x`; --", "we`ird; DROP TABLE x; --"
PLANS = "/api/v1/applications/{app}/sql?details=true&planDescription=true&length=1000"
PAGES = (
    PLANS,
    "/environment/",
    "/jobs/",
    "/stages/",
    "/SQL/",
    "/StreamingQuery/",
    "/executors/",
    "/api/v1/applications/{app}/environment",
    "/api/v1/applications/{app}/jobs",
    "/api/v1/applications/{app}/stages?details=true",
)
_ROWS = 30


@pytest.fixture
def secure_run(
    secure_kafka, authority, clickhouse, clickhouse_client, database, tmp_path
) -> Iterator[SecureRun]:
    proxy = TlsProxy(authority.issue("clickhouse"), clickhouse.place.ports["http"])
    run = SecureRun(secure_kafka, authority, proxy, database, clickhouse_client, tmp_path)
    try:
        yield run
    finally:
        run.end()
        proxy.close()


class SecureRun:
    def __init__(self, kafka, authority, proxy, database, client, folder: Path) -> None:
        self.folder, self.client, self.kafka, self.proxy = folder, client, kafka, proxy
        (self.ui_port,) = free_ports(1)
        self.table = f"{database}.{TABLE}"
        self.quoted = f"{database}.`{TABLE.replace('`', chr(92) + '`')}`"
        self.document = {
            "pipeline": "secure",
            "source": {
                "kafka": {
                    "bootstrap_servers": kafka.sasl_servers,
                    "topics": ["events"],
                    "options": {
                        "security.protocol": "SASL_SSL",
                        "sasl.mechanisms": "SCRAM-SHA-512",
                        "sasl.username": USER,
                        "sasl.password": SCRAM_PASSWORD,
                        "ssl.ca.location": str(authority.file),
                    },
                },
                "fields": FIELDS | {FIELD: "String"},
            },
            "identity": {"fields": ["product_id", FIELD], "headers": ["he`ad; --"]},
            "tables": [{"name": self.table}],
            "clickhouse": {
                "url": f"https://127.0.0.1:{proxy.port}",
                "user": "loader",
                "password": PASSWORD,
                "ca_file": str(authority.file),
            },
            "ledger": {
                "catalog": f"sqlite:///{folder}/ledger/catalog.db",
                "files": str(folder / "ledger/files"),
            },
            "epoch": {"max_wait": 0.1},
            "batch": {"min_rows": 1, "max_wait": 0.1, "min_interval": 0.1},
            "spark": {
                "master": "local[2]",
                "settings": {
                    "spark.jars": ",".join(str(jar) for jar in connector_jars()),
                    "spark.local.dir": str(folder / "spark"),
                    "spark.ui.enabled": True,
                    "spark.ui.port": self.ui_port,
                    "spark.hadoop.fs.s3a.secret.key": SPARK_SECRET,
                    "spark.hadoop.registry.userinfo": SPARK_SECRET,  # Spark alone would show this one
                },
            },
        }
        self.process: subprocess.Popen[bytes] | None = None

    def produce(self) -> None:
        settings = {"bootstrap.servers": self.kafka.bootstrap_servers, "log_level": 0}
        admin = AdminClient(settings)
        admin.create_topics([NewTopic("events", 1, 1)])["events"].result(timeout=30)
        producer = Producer(settings)
        for number in range(_ROWS):
            producer.produce(
                "events", encode(make_event(number), **{FIELD: "x"}), headers=[("he`ad; --", b"1")]
            )
        producer.produce("events", b"no JSON at all")
        assert producer.flush(30) == 0

    def start(self) -> None:
        file = self.folder / "pipeline.yaml"
        file.write_text(yaml.safe_dump(self.document), encoding="utf-8")
        command = [
            sys.executable,
            "-c",
            "from oncehouse.cli.app import main; main()",
            "--debug",
            "run",
            str(file),
        ]
        with (self.folder / "process.log").open("wb") as log:
            before = os.umask(0)
            try:
                self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            finally:
                os.umask(before)
        wait_until(lambda: self.process.poll() is not None or self.count() == _ROWS, "all rows")
        assert self.process.poll() is None, self.said()

    def count(self) -> int:
        return self.client.query(f"SELECT count() FROM {self.quoted}").result_rows[0][0]

    def said(self) -> str:
        return (self.folder / "process.log").read_text()

    def pages(self) -> dict[str, str]:
        root = f"http://127.0.0.1:{self.ui_port}"
        app = json.loads(_get(f"{root}/api/v1/applications"))[0]["id"]
        return {page: _get(root + page.replace("{app}", app)) for page in PAGES}

    def commands(self) -> list[str]:
        family = psutil.Process(self.process.pid)
        found = []
        for each in (family, *family.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # workers come and go
                found.append(" ".join(each.cmdline()))
        return found

    def end(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(120)
            finally:
                self.process.kill()


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def test_a_run_over_tls_under_strange_names_leaves_no_secret_and_nothing_for_others(secure_run):
    run = secure_run
    create_table(run)
    run.produce()
    run.start()
    assert run.proxy.accepted

    pages = run.pages()
    assert "spark.hadoop.registry.userinfo" in pages["/environment/"]
    assert "planDescription" in pages[PLANS]
    for page, text in pages.items():
        assert not [secret for secret in SECRETS if secret in text], page
    commands = run.commands()
    assert any("SparkSubmit" in command for command in commands)
    for command in commands:
        assert not [secret for secret in SECRETS if secret in command], command
    shuffled = list((run.folder / "spark").iterdir())
    assert shuffled
    for path in shuffled:
        demand_private(path)
    run.end()

    assert "error" not in run.said()
    files = [path for path in run.folder.rglob("*") if path.is_file() and path.name != "pipeline.yaml"]
    assert len(files) > 5
    for path in files:
        content = path.read_bytes()
        assert not [secret for secret in SECRETS if secret.encode() in content], path
    evaluate_ledger(run.folder / "ledger")


def create_table(run: SecureRun) -> None:
    oracle = Oracle.__new__(Oracle)
    oracle.client, oracle.document = run.client, run.document
    oracle.create_tables()


def evaluate_ledger(ledger: Path) -> None:
    everything = list(ledger.rglob("*"))
    assert {path.suffix for path in everything} >= {".db", ".parquet", ".arrow", ".log"}
    for path in everything:
        demand_private(path)
        assert re.fullmatch(r"[A-Za-z0-9._/-]+", str(path.relative_to(ledger))), path
        if path.is_file():
            judge_format(path)
    judge_catalog(ledger / "catalog.db")


def demand_private(path: Path) -> None:
    assert not path.lstat().st_mode & 0o077, f"{path} {stat.filemode(path.lstat().st_mode)}"


def judge_format(path: Path) -> None:
    """Parquet, Arrow, SQLite or text: formats that hold data and nothing to be run."""
    start = path.read_bytes()[:16]
    if start.startswith((b"PAR1", b"ARROW1", b"SQLite format 3")) or path.name.endswith(
        ("-wal", "-shm", ".crc")
    ):
        return
    path.read_text(encoding="utf-8")


def judge_catalog(path: Path) -> None:
    """No value of the catalog is a pickle: those begin with their protocol."""
    with sqlite3.connect(path) as catalog:
        tables = [name for (name,) in catalog.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        assert tables
        for table in tables:
            for row in catalog.execute(f'SELECT * FROM "{table}"'):
                assert not [value for value in row if isinstance(value, bytes) and value[:1] == b"\x80"], (
                    table
                )
    catalog.close()
