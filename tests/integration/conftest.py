"""The road on real servers, tables that are followed, and servers that ask for certificates and passwords."""

from collections.abc import Iterator

import pytest

from cdc_fixtures import cdc, make_cdc
from road_fixtures import make_road, road, spark
from secure_servers import Authority, SecureKafka, run_secure_kafka

__all__ = ["cdc", "make_cdc", "make_road", "road", "spark"]


@pytest.fixture(scope="session")
def authority(tmp_path_factory) -> Authority:
    """A certificate authority of the session's own."""
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture(scope="session")
def secure_kafka(authority, tmp_path_factory) -> Iterator[SecureKafka]:
    """A broker of its own with listeners for client certificates and for SASL over TLS."""
    with run_secure_kafka(tmp_path_factory.mktemp("secure"), authority) as kafka:
        yield kafka
