"""Spark's Python daemon with the road's modules loaded, so that workers forked from it start warm.

Spark runs this as `spark.python.daemon.module`. Nothing that starts threads may be imported here: a forked
child has only the thread that forked it. Polars does, so it is imported by the workers that hash.
"""

from __future__ import annotations

import pyarrow.compute
import pyarrow.json
import pyarrow.parquet  # noqa: F401
from pyspark.daemon import manager

import oncehouse.pipeline.ingest
import oncehouse.pipeline.loader  # noqa: F401
from oncehouse import logs

if __name__ == "__main__":
    logs.start_if_told()
    manager()
