"""The section `inbox` of the messaging file, and names and ids of the inbox."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inbox_examples import message
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.inbox.ids import BUCKETS, bound_id, bucket_of, digest_value, hash_key
from oncehouse.messaging.inbox.settings import InboxSettings
from oncehouse.messaging.settings import load_messaging


def test_a_file_sets_workers_and_inlet(tmp_path):
    file = tmp_path / "messaging.yaml"
    file.write_text(
        "inbox:\n  names: [orders]\n  keep: 2d\n  concurrency: 4\n  parked_holds_key: true\n  lease: 20s\n"
        "  drain: 5s\n  retries: {attempts: 3, first_wait: 2s, longest_wait: 1m}\n"
        "  inlet: {host: 0.0.0.0, port: 80, token: '${env:TOKEN}', max_body: 64KB}\n"
    )
    settings = load_messaging(file, {"TOKEN": "secret"}).inbox
    worker = settings.for_worker()
    assert (worker.concurrency, worker.max_attempts, worker.keep_seconds) == (4, 3, 172_800)
    assert (worker.backoff.base_seconds, worker.backoff.longest_seconds) == (2, 60)
    assert (worker.parked_holds_key, worker.lease_seconds, worker.drain_seconds) == (True, 20, 5)
    assert settings.inlet.max_body == 65_536
    assert "secret" not in repr(settings)


@pytest.mark.parametrize("host", ["0.0.0.0", "example.org", "::", "10.0.0.1"])
def test_an_inlet_open_to_others_needs_a_token(host):
    with pytest.raises(
        ConfigurationError, match="without a token the HTTP endpoint listens on a loopback address only"
    ):
        InboxSettings(inlet={"host": host})
    assert InboxSettings(inlet={"host": host, "token": "x"}).inlet.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_an_inlet_of_this_machine_needs_none(host):
    assert InboxSettings(inlet={"host": host}).inlet.token is None


@pytest.mark.parametrize(
    "values",
    [
        {"names": ["a/b"]},
        {"concurrency": 0},
        {"keep": 0},
        {"retries": {"attempts": 0}},
        {"retries": {"first_wait": "2s", "longest_wait": "1s"}},
        {"inlet": {"port": 70_000}},
    ],
)
def test_what_cannot_work_is_refused(values):
    with pytest.raises(ConfigurationError):
        InboxSettings(**values)


def test_the_inbox_that_is_meant_is_the_one_named_or_the_only_one():
    assert InboxSettings(names=["orders"]).require_name(None) == "orders"
    assert InboxSettings(names=["orders", "mail"]).require_name("mail") == "mail"
    assert InboxSettings().require_name("mail") == "mail"
    with pytest.raises(ConfigurationError, match=r"add --inbox orders \| mail"):
        InboxSettings(names=["orders", "mail"]).require_name(None)
    with pytest.raises(ConfigurationError, match=r"name it under inbox\.names"):
        InboxSettings().require_name(None)
    with pytest.raises(ConfigurationError, match="has no 'other'"):
        InboxSettings(names=["orders"]).require_name("other")


@given(st.text(max_size=300), st.text(max_size=300))
def test_ids_are_bounded_printable_and_tell_messages_apart(one, other):
    spelt = bound_id(one)
    assert 0 < len(spelt) <= 200
    assert spelt.isprintable()
    assert (spelt == bound_id(other)) == (one == other)


def test_keys_that_are_the_same_share_a_bucket_and_no_key_is_alone():
    assert hash_key(message("1", key="k")) == hash_key(message("2", key="k"))
    assert hash_key(message("1", key=None)) != hash_key(message("2", key=None))
    assert hash_key(message("k", key=None)) != hash_key(message("1", key="k"))
    buckets = {bucket_of(hash_key(message("1", key=str(n)))) for n in range(2_000)}
    assert buckets == set(range(BUCKETS))


def test_no_body_is_another_than_an_empty_one():
    assert digest_value(None) != digest_value(b"")
