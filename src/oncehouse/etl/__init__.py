"""The scheduler: Fact tables built step by step from Stage tables inside ClickHouse, exactly once.

It imports the SQL catalog (for offsets), ClickHouse and configuration, and nothing of pipeline or messaging.
Start in `scheduler/scheduler.py` (a round) and `steps/operation_builder.py` (what a step does, in which order); the
packages from the bottom: `lineage/`, `state/`, `quality/`, `steps/`, `scheduler/` and `preflight/`.
The names below are what programs need that work on a scheduler in Python; they are imported when first asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncehouse.etl.lineage.files import load_lineage
    from oncehouse.etl.lineage.topic import Topic
    from oncehouse.etl.open import Etl, open_etl
    from oncehouse.etl.scheduler.scheduler import Scheduler
    from oncehouse.etl.settings import EtlSettings, load_settings
    from oncehouse.etl.state.declarations import declare
    from oncehouse.etl.state.position import Position
    from oncehouse.etl.status import TopicStatus, read_status

__all__ = [
    "Etl",
    "EtlSettings",
    "Position",
    "Scheduler",
    "Topic",
    "TopicStatus",
    "declare",
    "load_lineage",
    "load_settings",
    "open_etl",
    "read_status",
]

_HOMES = {
    "Etl": "open",
    "EtlSettings": "settings",
    "Position": "state.position",
    "Scheduler": "scheduler.scheduler",
    "Topic": "lineage.topic",
    "TopicStatus": "status",
    "declare": "state.declarations",
    "load_lineage": "lineage.files",
    "load_settings": "settings",
    "open_etl": "open",
    "read_status": "status",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"oncehouse.etl.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
