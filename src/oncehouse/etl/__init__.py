"""The scheduler: Fact tables built step by step from Stage tables inside ClickHouse, exactly once.

It imports the SQL catalog (for offsets), ClickHouse and configuration, and nothing of pipeline or messaging.
Start in `scheduler/scheduler.py` (a round) and `steps/operation_builder.py` (what a step does, in which order); the
packages from the bottom: `lineage/`, `state/`, `quality/`, `steps/`, `scheduler/` and `preflight/`.
The names below are what programs need that work on a scheduler in Python; they are imported when first asked for.
"""

from typing import TYPE_CHECKING

from oncehouse.common.extras import lazy_exports

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
    "Etl": "oncehouse.etl.open",
    "EtlSettings": "oncehouse.etl.settings",
    "Position": "oncehouse.etl.state.position",
    "Scheduler": "oncehouse.etl.scheduler.scheduler",
    "Topic": "oncehouse.etl.lineage.topic",
    "TopicStatus": "oncehouse.etl.status",
    "declare": "oncehouse.etl.state.declarations",
    "load_lineage": "oncehouse.etl.lineage.files",
    "load_settings": "oncehouse.etl.settings",
    "open_etl": "oncehouse.etl.open",
    "read_status": "oncehouse.etl.status",
}


__getattr__, __dir__ = lazy_exports(__name__, _HOMES, extra="etl")
