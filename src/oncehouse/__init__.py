"""oncehouse: events reach ClickHouse once."""

__version__ = "0.1.0"
