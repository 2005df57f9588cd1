"""oncehouse: events reach ClickHouse once.

The names below are imported when they are first asked for, so that `import oncehouse` costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncehouse.config import Pipeline
    from oncehouse.config_file import load_pipeline
    from oncehouse.pipeline.sink import Sink

__all__ = ["Pipeline", "Sink", "__version__", "load_pipeline"]

__version__ = "0.2.0.dev0"

_HOMES = {
    "Pipeline": "oncehouse.config",
    "Sink": "oncehouse.pipeline.sink",
    "load_pipeline": "oncehouse.config_file",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
