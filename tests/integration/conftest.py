"""The road on real servers, and tables that are followed, for the tests of this folder."""

from cdc_fixtures import cdc, make_cdc
from road_fixtures import make_road, road, spark

__all__ = ["cdc", "make_cdc", "make_road", "road", "spark"]
