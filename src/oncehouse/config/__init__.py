"""The pipeline file as frozen values: models, the loader, problems, cross-checks.

It reads files and knows no server. Start in `pipeline.py` (the sections) and `file_loader.py` (from YAML to values).
The names below are what programs need that write a pipeline in Python; they are imported when they are first asked for.
"""

from typing import TYPE_CHECKING

from oncehouse.common.extras import lazy_exports

if TYPE_CHECKING:
    from oncehouse.config.formats import Avro, Csv, Debezium, Registry, Text
    from oncehouse.config.pipeline import (
        BatchLimits,
        ClickHouse,
        DeadLetters,
        Declare,
        Epoch,
        Identity,
        Kafka,
        Ledger,
        Pipeline,
        Retry,
        Route,
        Source,
        Spark,
        Table,
    )
    from oncehouse.config.protobuf import Protobuf

__all__ = [
    "Avro",
    "BatchLimits",
    "ClickHouse",
    "Csv",
    "DeadLetters",
    "Debezium",
    "Declare",
    "Epoch",
    "Identity",
    "Kafka",
    "Ledger",
    "Pipeline",
    "Protobuf",
    "Registry",
    "Retry",
    "Route",
    "Source",
    "Spark",
    "Table",
    "Text",
]

_HOMES = {
    "Avro": "oncehouse.config.formats",
    "BatchLimits": "oncehouse.config.pipeline",
    "ClickHouse": "oncehouse.config.pipeline",
    "Csv": "oncehouse.config.formats",
    "DeadLetters": "oncehouse.config.pipeline",
    "Debezium": "oncehouse.config.formats",
    "Declare": "oncehouse.config.pipeline",
    "Epoch": "oncehouse.config.pipeline",
    "Identity": "oncehouse.config.pipeline",
    "Kafka": "oncehouse.config.pipeline",
    "Ledger": "oncehouse.config.pipeline",
    "Pipeline": "oncehouse.config.pipeline",
    "Protobuf": "oncehouse.config.protobuf",
    "Registry": "oncehouse.config.formats",
    "Retry": "oncehouse.config.pipeline",
    "Route": "oncehouse.config.pipeline",
    "Source": "oncehouse.config.pipeline",
    "Spark": "oncehouse.config.pipeline",
    "Table": "oncehouse.config.pipeline",
    "Text": "oncehouse.config.formats",
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES, extra="pipeline")
