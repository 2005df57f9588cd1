"""Durations, sizes and names: what is read, what is refused, and that spelling and reading are inverse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.common.redaction import hide_credentials, is_secret_setting
from oncehouse.config.field_types import (
    check_http_url,
    check_name,
    check_registry_url,
    check_servers,
    check_table_name,
    check_topic,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("5s", 5), ("1.5m", 90), ("2h", 7200), ("60d", 5_184_000), (" 1 w ", 604_800)],
)
def test_durations_are_read_in_seconds(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5 days", "-5s", "1e3s", "5S", "\u0665s", "5s\n5s"])
def test_a_wrong_duration_is_answered_with_how_to_write_one(text):
    with pytest.raises(ValueError, match='write it like "500ms"'):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "5", "5 MiB", "-5MB", "MB"])
def test_a_wrong_size_is_answered_with_how_to_write_one(text):
    with pytest.raises(ValueError, match='write it like "64KB"'):
        parse_size(text)


@pytest.mark.parametrize("value", [True, None])
def test_a_switch_or_nothing_is_no_duration_and_no_size(value):
    with pytest.raises(ValueError, match="must be a duration"):
        parse_duration(value)
    with pytest.raises(ValueError, match="must be a size"):
        parse_size(value)


@given(st.integers(min_value=0, max_value=10**10))
def test_a_whole_number_of_seconds_survives_being_spelt_and_read(seconds):
    assert parse_duration(format_duration(float(seconds))) == seconds


@given(st.integers(min_value=1, max_value=1 << 50))
def test_a_number_of_bytes_survives_being_spelt_and_read(count):
    assert parse_size(format_size(count)) == count


def test_durations_and_sizes_are_spelt_as_people_write_them():
    assert [format_duration(s) for s in (0.5, 1, 90, 3600, 5_184_000)] == ["500ms", "1s", "90s", "1h", "60d"]
    assert [format_size(b) for b in (1, 1 << 20, 256 << 20, 1500)] == ["1B", "1MB", "256MB", "1500B"]


@pytest.mark.parametrize(
    "name", ["", " a", "a ", "a\nb", "a\x1b[31m", "a\u202eb", "a\u2028b", "\ufeffa", "a" * 201, "\ud800"]
)
def test_a_name_that_cannot_be_seen_or_is_too_long_is_refused(name):
    with pytest.raises(ValueError, match="name"):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "цена", "a`b", 'a"; DROP TABLE x', "x" * 200])
def test_a_name_that_only_needs_quoting_passes(name):
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["a.b.c", ".a", "a.", ".", ""])
def test_a_table_name_has_one_or_two_parts(name):
    with pytest.raises(ValueError, match=r"dot|empty"):
        check_table_name(name)


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "a/b", "é", "x" * 250, "events\n"])
def test_a_topic_follows_the_rules_of_kafka(topic):
    with pytest.raises(ValueError, match="not a topic name"):
        check_topic(topic)


@pytest.mark.parametrize(
    "servers", ["localhost", "localhost:", "a:0", "a:70000", "a:1,,b:2", "a:1 b:2", "u@h:1"]
)
def test_servers_need_a_host_and_a_port(servers):
    with pytest.raises(ValueError, match="host:port"):
        check_servers(servers)


@pytest.mark.parametrize("servers", ["localhost:9092", "a:1, b:2", "[::1]:9092", "PLAINTEXT://a:1"])
def test_servers_in_the_usual_spellings_pass(servers):
    assert check_servers(servers) == servers


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8123",
        "tcp://h:9000",
        "http://",
        "http://h:99999",
        "http://h/a/b",
        "http://h?x=1",
        "http://h\n",
    ],
)
def test_an_address_that_is_not_http_is_refused(url):
    with pytest.raises(ValueError, match="write it like http://localhost:8123"):
        check_http_url(url)


def test_credentials_in_an_address_are_refused_without_showing_them():
    with pytest.raises(ValueError, match=r"clickhouse\.password") as caught:
        check_http_url("http://me:hunter2@host:8123")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://registry:8081", "https://registry/", "https://r:443/apis/ccompat/v7"]
)
def test_a_registry_may_have_a_path_of_its_own(url):
    assert check_registry_url(url) == url


@pytest.mark.parametrize(
    "url", ["registry:8081", "ftp://registry", "http://registry?x=1", "http://registry/a b"]
)
def test_an_address_that_is_no_registry_is_refused(url):
    with pytest.raises(ValueError, match="write it like https://registry:8081"):
        check_registry_url(url)


def test_credentials_in_the_address_of_a_registry_are_refused_without_showing_them():
    with pytest.raises(ValueError, match=r"registry\.password") as caught:
        check_registry_url("http://me:hunter2@host:8081")
    assert "hunter2" not in str(caught.value)


def test_credentials_before_a_host_are_hidden():
    assert hide_credentials("s3://key:hunter2@bucket/a") == "s3://**********@bucket/a"
    assert hide_credentials("s3://bucket/a@b") == "s3://bucket/a@b"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("sasl.password", True),
        ("sasl.jaas.config", True),
        ("ssl.key.pem", True),
        ("spark.hadoop.fs.s3a.secret.key", True),
        ("security.protocol", False),
        ("spark.driver.memory", False),
    ],
)
def test_settings_that_hold_secrets_are_known_by_their_names(name, secret):
    assert is_secret_setting(name) is secret
