"""The pipeline on real servers, tables that are followed, and servers that ask for certificates and passwords."""

from cdc_fixtures import cdc, make_cdc
from live_pipeline_fixtures import live_pipeline, make_pipeline, reader, spark
from secure_fixtures import authority, secure_kafka

__all__ = [
    "authority",
    "cdc",
    "live_pipeline",
    "make_cdc",
    "make_pipeline",
    "reader",
    "secure_kafka",
    "spark",
]
