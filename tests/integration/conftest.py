"""The road on real servers, for the tests of this folder."""

from road_fixtures import make_road, road, spark

__all__ = ["make_road", "road", "spark"]
