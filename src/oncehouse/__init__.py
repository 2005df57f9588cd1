"""oncehouse: events reach ClickHouse once.

The names below are imported when they are first asked for, so that `import oncehouse` costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncehouse.config.file_loader import load_pipeline
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.pipeline.external.sink import Sink

__all__ = ["Pipeline", "Sink", "__version__", "load_pipeline"]

__version__ = "0.2.0.dev0"

_HOMES = {
    "Pipeline": "oncehouse.config.pipeline",
    "Sink": "oncehouse.pipeline.external.sink",
    "load_pipeline": "oncehouse.config.file_loader",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
