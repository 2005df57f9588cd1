"""What a driver tells a read task, as far as a test does not say otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oncehouse.column_types.parser import parse_type
from oncehouse.pipeline.dedup.identity_rule import Rule
from oncehouse.pipeline.formats.json.format import JsonFormat
from oncehouse.pipeline.ingest.manifest import ReadPlan, TableReadPlan


def make_read_plan(folder: Path | str, **changes: Any) -> ReadPlan:
    values: dict[str, Any] = {
        "pipeline": "shop",
        "epoch": 1,
        "token": 1,
        "topics": ("events",),
        "format": JsonFormat(),
        "fields": {"id": parse_type("UInt64")},
        "identity": Rule(fields=(("id",),)),
        "tables": (TableReadPlan(name="t", columns=(("id", "id"),), id_column=None),),
        "files_root": str(folder),
        "max_message_bytes": 1000,
        "max_depth": 10,
        "part_rows": 100,
        "part_bytes": 1 << 20,
        "whole": False,
    }
    return ReadPlan(**(values | changes))
