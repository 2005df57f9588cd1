"""oncehouse: events reach ClickHouse once.

The names below are imported when they are first asked for, so that `import oncehouse` costs nothing.
"""

from typing import TYPE_CHECKING

from oncehouse.common.extras import lazy_exports

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


__getattr__, __dir__ = lazy_exports(__name__, _HOMES, extra="pipeline")
