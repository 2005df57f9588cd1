"""The events of the demo, which benchmarks send too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples" / "demo"))
from demo_events import (
    FIELDS,
    IDENTITY,
    Serials,
    encode_columns,
    make_columns,
    make_messages,
    make_topic,
    open_producer,
    plan_traffic,
    send,
)

__all__ = [
    "FIELDS",
    "IDENTITY",
    "Serials",
    "encode_columns",
    "make_columns",
    "make_messages",
    "make_topic",
    "open_producer",
    "plan_traffic",
    "send",
]
