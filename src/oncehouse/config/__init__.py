"""The pipeline file as frozen values: models, the loader, problems, cross-checks.

It reads files and knows no server. Start in `pipeline.py` (the sections) and `file_loader.py` (from YAML to values).
The names below are what programs need that write a pipeline in Python; they are imported when they are first asked for.
"""

from typing import TYPE_CHECKING, Any

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

_FORMATS = {"Avro", "Csv", "Debezium", "Registry", "Text"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = "formats" if name in _FORMATS else "protobuf" if name == "Protobuf" else "pipeline"
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
