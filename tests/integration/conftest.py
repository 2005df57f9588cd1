"""The road on real servers, tables that are followed, and servers that ask for certificates and passwords."""

from cdc_fixtures import cdc, make_cdc
from road_fixtures import make_road, road, spark
from secure_fixtures import authority, secure_kafka

__all__ = ["authority", "cdc", "make_cdc", "make_road", "road", "secure_kafka", "spark"]
