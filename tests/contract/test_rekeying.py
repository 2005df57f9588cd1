"""A changed identity rule in the catalog: key files, segments, rule and request together, or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledger_examples import IDENTITY, make_file, make_registration, make_segment, register_epochs
from oncehouse.errors import ConfigurationError, FencedError, PermanentError
from oncehouse.ledger import epochs, packs, requests, segments
from oncehouse.ledger.packs import Move
from oncehouse.ledger.records import Identity, RequestKind
from oncehouse.ledger.registering import register
from oncehouse.ledger.rekeying import change_identity

OTHER = Identity(fingerprint="sha256:id(order_id, line)", buckets=32)


def state(catalog):
    return (
        catalog.identity(),
        epochs.list_key_files(catalog),
        segments.list_segments(catalog),
        requests.open_requests(catalog),
        packs.kept_garbage(catalog),
    )


def ask(catalog) -> int:
    arguments = {"fingerprint": OTHER.fingerprint, "buckets": OTHER.buckets}
    return requests.add_request(catalog, RequestKind.REKEY, arguments)


def moves_of(catalog) -> list[Move]:
    return [
        Move(old=found.keys, new=replace(make_file("keys/anew"), row=number * 10))
        for number, (_, _, found) in enumerate(epochs.list_key_files(catalog))
    ]


def change(catalog, token, **changes):
    asked = {
        "moves": moves_of(catalog),
        "old": [segment.segment for segment in segments.list_segments(catalog)],
        "new": [make_segment("anew")],
        "request": (1, "done"),
    }
    change_identity(catalog, token, OTHER, **(asked | changes))


@pytest.fixture
def token(catalog) -> int:
    token = register_epochs(catalog, 2)
    segments.replace_segments(catalog, token, old=[], new=[make_segment("first")])
    ask(catalog)
    return token


def test_everything_changes_at_once_and_the_old_files_are_garbage(catalog, token):
    assert requests.pending_rekey(catalog) == OTHER
    raw = [found.raw for _, _, found in epochs.list_key_files(catalog)]
    change(catalog, token)
    assert catalog.identity() == OTHER
    found = [key_file for _, _, key_file in epochs.list_key_files(catalog)]
    assert [(key_file.keys.path, key_file.keys.row) for key_file in found] == [
        ("keys/anew", 0),
        ("keys/anew", 10),
    ]
    assert [key_file.raw for key_file in found] == raw
    assert [segment.segment for segment in segments.list_segments(catalog)] == ["anew"]
    assert requests.open_requests(catalog) == ()
    assert requests.pending_rekey(catalog) is None
    assert packs.kept_garbage(catalog) == {"keys/1", "keys/2"}


def test_only_the_buckets_may_change(catalog, token):
    before = epochs.list_key_files(catalog)
    change(catalog, token, moves=None)
    assert epochs.list_key_files(catalog) == before
    assert packs.kept_garbage(catalog) == set()


@pytest.mark.parametrize(
    "wrong",
    [
        {"moves": []},
        {"moves": [Move(old=make_file("keys/1"), new=make_file("keys/anew"))]},
        {"old": ["gone"]},
        {"request": (7, "done")},
    ],
)
def test_whatever_does_not_fit_undoes_all_of_it(catalog, token, wrong):
    before = state(catalog)
    with pytest.raises(PermanentError):
        change(catalog, token, **wrong)
    assert state(catalog) == before


def test_who_has_lost_the_lease_changes_nothing(catalog, token):
    before = state(catalog)
    with pytest.raises(FencedError):
        change(catalog, token - 1)
    assert state(catalog) == before


def test_a_request_that_was_taken_back_meanwhile_undoes_all_of_it(catalog, token):
    requests.withdraw_requests(catalog, RequestKind.REKEY)
    before = state(catalog)
    with pytest.raises(PermanentError, match="unknown or done already"):
        change(catalog, token)
    assert state(catalog) == before


def test_an_epoch_with_ids_of_another_rule_is_refused(catalog, token):
    mine = make_registration(3, start=20, end=30, identity=IDENTITY)
    with pytest.raises(ConfigurationError, match="identity rule has changed"):
        register(catalog, token, replace(mine, identity=OTHER))
    register(catalog, token, mine)
