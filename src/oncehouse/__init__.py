"""oncehouse: events reach ClickHouse once.

The public names of the pipeline, and the errors of all packages. Everything but the errors is imported on first use, so
that `import oncehouse` costs nothing. Names in `__all__` here and in the packages that docs/versioning.md lists are
public; everything else may change in any release.
"""

from typing import TYPE_CHECKING

from oncehouse.common.extras import lazy_exports
from oncehouse.errors import (
    BatchSettledError,
    CatalogBehindError,
    ConfigurationError,
    CorruptFileError,
    DataLossError,
    FencedError,
    FullDiskError,
    LeaseHeldError,
    MissingExtraError,
    OffsetGapError,
    OncehouseError,
    PermanentError,
    PoisonError,
    TransientError,
    UpgradeNeededError,
)

if TYPE_CHECKING:
    from oncehouse.config.file_loader import load_pipeline
    from oncehouse.config.pipeline import Pipeline
    from oncehouse.pipeline.external.sink import Sink
    from oncehouse.pipeline.run import run_pipeline

__all__ = [
    "BatchSettledError",
    "CatalogBehindError",
    "ConfigurationError",
    "CorruptFileError",
    "DataLossError",
    "FencedError",
    "FullDiskError",
    "LeaseHeldError",
    "MissingExtraError",
    "OffsetGapError",
    "OncehouseError",
    "PermanentError",
    "Pipeline",
    "PoisonError",
    "Sink",
    "TransientError",
    "UpgradeNeededError",
    "__version__",
    "load_pipeline",
    "run_pipeline",
]

__version__ = "0.2.0.dev0"

_HOMES = {
    "Pipeline": "oncehouse.config.pipeline",
    "Sink": "oncehouse.pipeline.external.sink",
    "load_pipeline": "oncehouse.config.file_loader",
    "run_pipeline": "oncehouse.pipeline.run",
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES, extra="pipeline")
