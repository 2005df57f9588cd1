"""The pipeline of a soak: its files, its topic, its tables, as a user would make them."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import yaml

from oncehouse.clickhouse.client import connect
from oncehouse.config.file_loader import load_pipeline
from oncehouse.config.pipeline import ClickHouse, Pipeline
from oncehouse.devstack.jars import connector_jars
from oncehouse.errors import PermanentError
from soak_cast import STAGES, Cast
from soak_oracle import TABLE, VIEW
from soak_traffic import FIELDS, IDENTITY, PARTITIONS, TOPIC, TOPIC_SETTINGS
from soak_watch import DRIVER_HEAP_MB, EXECUTOR_HEAP_MB

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples" / "demo"))
from demo_events import make_topic

# Retention has nothing to do most of the time: an executor of its own would only stand about.
_CORES = {"ingest": 2, "load": 1, "retention": 0}
# Processes that live for a minute are not worth compiling for, and start much sooner without.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def set_stage(cast: Cast, *, epoch_rows: int) -> tuple[Pipeline, dict[str, Path]]:
    """Topic, tables and a pipeline file for each stage; they differ in what they ask of Spark."""
    make_topic(cast.stack.kafka.bootstrap_servers, TOPIC, partitions=PARTITIONS, settings=TOPIC_SETTINGS)
    files = {stage: cast.folder / f"{stage}.yaml" for stage in STAGES}
    for stage, file in files.items():
        file.write_text(yaml.safe_dump(_describe(cast, epoch_rows, _CORES[stage]), sort_keys=False))
    order = ",".join(IDENTITY)
    code, said = cast.run_to_end("table", "create", "--yes", "--order-by", order, str(files["ingest"]))
    if code:
        raise PermanentError(f"The table {TABLE} could not be made: {said}")
    client = connect(ClickHouse(url=cast.stack.clickhouse.url))
    for statement in VIEW:
        client.command(statement)
    return load_pipeline(files["ingest"]), files


def _describe(cast: Cast, epoch_rows: int, cores: int) -> dict[str, Any]:
    kafka = {"bootstrap_servers": cast.stack.kafka.bootstrap_servers, "topics": [TOPIC]}
    ledger = cast.folder / "ledger"
    return {
        "pipeline": "soak",
        "source": {"kafka": kafka, "fields": copy.deepcopy(FIELDS)},
        "identity": {"fields": list(IDENTITY)},
        "tables": [{"name": TABLE}],
        "clickhouse": {"url": cast.stack.clickhouse.url},
        "ledger": {"catalog": f"sqlite:///{ledger}/catalog.db", "files": str(ledger / "files")},
        "epoch": {"max_rows": epoch_rows},
        "retry": {"longest": "15s"},
        "spark": {
            "master": cast.master if cores else "local[1]",
            "settings": _spark_settings(cast, cores) if cores else _local_settings(cast),
        },
    }


def _local_settings(cast: Cast) -> dict[str, str]:
    return {
        # Every node has them: they need not be copied to each executor.
        "spark.jars": ",".join(f"local:{jar}" for jar in connector_jars()),
        "spark.driver.memory": f"{DRIVER_HEAP_MB}m",
        "spark.local.dir": str(cast.scratch),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={cast.scratch} {_SHORT_LIVED}",
    }


def _spark_settings(cast: Cast, cores: int) -> dict[str, str]:
    return _local_settings(cast) | {
        "spark.cores.max": str(cores),
        "spark.executor.cores": str(cores),
        "spark.executor.memory": f"{EXECUTOR_HEAP_MB}m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.extraJavaOptions": f"-Djava.io.tmpdir={cast.scratch} {_SHORT_LIVED}",
    }
