"""Fixtures of servers that ask for certificates and passwords, for every folder whose tests talk to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from secure_servers import Authority, SecureKafka, run_secure_kafka


@pytest.fixture(scope="session")
def authority(tmp_path_factory) -> Authority:
    """A certificate authority of the session's own."""
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture(scope="session")
def secure_kafka(authority, tmp_path_factory) -> Iterator[SecureKafka]:
    """A broker of its own with listeners for client certificates and for SASL over TLS."""
    with run_secure_kafka(tmp_path_factory.mktemp("secure"), authority) as kafka:
        yield kafka
