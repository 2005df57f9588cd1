"""HTTPS to ClickHouse: a private authority is trusted by name, everything else is refused, never passed over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncehouse.clickhouse.client import connect
from oncehouse.config.pipeline import ClickHouse
from oncehouse.errors import ConfigurationError, OncehouseError
from secure_servers import Authority, TlsProxy


@pytest.fixture
def proxy(authority, clickhouse, tmp_path) -> Iterator[TlsProxy]:
    proxy = TlsProxy(authority.issue("clickhouse"), clickhouse.place.ports["http"])
    yield proxy
    proxy.close()


def ask(proxy: TlsProxy, host: str = "127.0.0.1", **options: object) -> object:
    return connect(ClickHouse(url=f"https://{host}:{proxy.port}", **options)).query("SELECT 1")


def test_a_private_authority_that_is_named_is_trusted(proxy, authority):
    assert ask(proxy, ca_file=str(authority.file)) == [(1,)]
    assert proxy.accepted


def test_an_authority_that_nobody_named_is_refused(proxy):
    with pytest.raises(ConfigurationError, match=r"(?s)certificate verify failed.*clickhouse\.ca_file"):
        ask(proxy)


def test_another_authority_than_the_servers_is_refused(proxy, tmp_path):
    other = Authority(tmp_path, "other")
    with pytest.raises(ConfigurationError, match=r"(?s)certificate verify failed.*clickhouse\.ca_file"):
        ask(proxy, ca_file=str(other.file))


def test_a_host_that_the_certificate_does_not_name_is_refused(proxy, authority):
    with pytest.raises(ConfigurationError, match=r"(?si)(hostname|localhost).*clickhouse\.ca_file"):
        ask(proxy, host="localhost", ca_file=str(authority.file))


def test_certificates_that_cannot_be_read_stop_it(proxy, tmp_path):
    with pytest.raises(OncehouseError, match="ca_file"):
        ask(proxy, ca_file=str(tmp_path / "absent.pem"))
    (tmp_path / "empty.pem").write_text("no certificate")
    with pytest.raises(OncehouseError, match="ca_file"):
        ask(proxy, ca_file=str(tmp_path / "empty.pem"))


def test_only_who_says_so_goes_without_a_check(proxy):
    assert ask(proxy, verify_tls=False) == [(1,)]


def test_https_to_a_port_of_plain_http_is_said(clickhouse):
    config = ClickHouse(url=f"https://127.0.0.1:{clickhouse.place.ports['http']}")
    with pytest.raises(ConfigurationError, match=r"clickhouse\.url"):
        connect(config).query("SELECT 1")


def test_certificates_named_for_plain_http_are_a_mistake_that_is_told():
    with pytest.raises(ConfigurationError, match="https"):
        ClickHouse(url="http://h:1", ca_file="ca.pem")
