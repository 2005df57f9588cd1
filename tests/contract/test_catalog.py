from __future__ import annotations

import pytest
from sqlalchemy import select, text, update

from ledger_examples import IDENTITY, TOPIC, make_registration, race, register_epochs, take_lease
from lost_commits import answers_of_commits_lost, commits_undone, lost_connection
from oncehouse.errors import ConfigurationError, FencedError, PermanentError, TransientError
from oncehouse.ledger.catalog import migrations, schema
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.epochs import list_epochs, next_epoch, read_positions
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.catalog.requests import add_request, list_requests
from oncehouse.ledger.models import LedgerIdentity, RequestKind, Stage


def test_a_fresh_database_has_no_ledger_until_it_is_prepared(catalog_url):
    catalog = Catalog(catalog_url, "shop", retry_seconds=())
    assert not catalog.exists()
    catalog.prepare()
    assert catalog.exists()
    catalog.close()


def test_preparing_again_changes_nothing(catalog):
    register_epochs(catalog)
    catalog.prepare()
    assert [row.epoch for row in list_epochs(catalog)] == [1]


def test_several_processes_may_prepare_at_once(catalog_url):
    opened = [Catalog(catalog_url, "shop", retry_seconds=(0.0,)) for _ in range(4)]
    assert race([catalog.prepare for catalog in opened]) == [None] * 4
    assert opened[0].exists()
    for catalog in opened:
        catalog.close()


def test_a_ledger_of_a_newer_version_is_refused_and_left_alone(catalog):
    with catalog.engine.begin() as connection:
        connection.execute(update(schema.ledger_version).values(version=schema.VERSION + 1))
    with pytest.raises(ConfigurationError, match=f"version {schema.VERSION + 1}"):
        catalog.prepare()
    with pytest.raises(ConfigurationError, match="newer oncehouse"):
        catalog.exists()
    with catalog.read() as connection:
        assert migrations.read_version(connection) == schema.VERSION + 1


def test_the_same_identity_is_adopted_again(catalog):
    catalog.adopt(IDENTITY)
    assert catalog.identity() == IDENTITY


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        (LedgerIdentity(fingerprint="sha256:id(other)", buckets=16), "identity rule"),
        (LedgerIdentity(fingerprint=IDENTITY.fingerprint, buckets=32), "buckets"),
    ],
)
def test_another_identity_rule_or_bucket_number_is_refused(catalog, changed, word):
    with pytest.raises(ConfigurationError, match=word):
        catalog.adopt(changed)
    assert catalog.identity() == IDENTITY


def test_pipelines_in_one_database_do_not_see_each_other(catalog, catalog_url):
    register_epochs(catalog, 2)
    other = Catalog(catalog_url, "other", retry_seconds=())
    other.adopt(LedgerIdentity(fingerprint="sha256:id(other)", buckets=4))
    assert next_epoch(other) == 1
    register_epochs(other)
    assert (next_epoch(other), next_epoch(catalog)) == (2, 3)
    other.close()


def test_several_processes_may_adopt_at_once(catalog, catalog_url):
    opened = [Catalog(catalog_url, "raced", retry_seconds=(0.0,)) for _ in range(4)]
    assert race([lambda c=c: c.adopt(IDENTITY) for c in opened]) == [None] * 4
    for other in opened:
        other.close()


def test_requests_made_at_once_get_numbers_of_their_own(catalog):
    add = [lambda: add_request(catalog, RequestKind.REBUILD_INDEX, {}) for _ in range(2)]
    assert sorted(race(add)) == [1, 2]
    assert len(list_requests(catalog)) == 2


def test_a_write_with_an_old_token_is_refused_and_undone(catalog):
    old = take_lease(catalog)
    take_lease(catalog)
    with pytest.raises(FencedError, match=f"token {old}"):
        register(catalog, old, make_registration())
    assert list_epochs(catalog) == ()


def test_a_write_whose_commit_answer_was_lost_is_not_repeated(catalog):
    token = take_lease(catalog)
    runs = []

    def change(connection):
        runs.append(True)
        return len(runs)

    with answers_of_commits_lost(catalog, 1):
        assert catalog.write(Stage.INGEST, token, change) == 1
    assert len(runs) == 1


def test_an_epoch_whose_commit_answer_was_lost_is_registered_once(catalog):
    token = take_lease(catalog)
    with answers_of_commits_lost(catalog, 1):
        register(catalog, token, make_registration())
    assert [row.epoch for row in list_epochs(catalog)] == [1]


def test_a_write_that_was_rolled_back_is_repeated(catalog):
    token = take_lease(catalog)
    runs = []

    def change(connection):
        runs.append(True)
        connection.execute(update(schema.pipelines).values(fingerprint=f"run {len(runs)}"))
        if len(runs) == 1:
            raise lost_connection()

    catalog.write(Stage.INGEST, token, change)
    assert len(runs) == 2
    assert catalog.identity().fingerprint == "run 2"


def test_a_commit_that_never_reached_the_database_is_repeated(catalog):
    token = take_lease(catalog)
    runs = []

    def change(connection):
        runs.append(True)
        connection.execute(update(schema.pipelines).values(fingerprint=f"run {len(runs)}"))

    with commits_undone(catalog, 1):
        catalog.write(Stage.INGEST, token, change)
    assert len(runs) == 2
    assert catalog.identity().fingerprint == "run 2"


def test_a_database_that_stays_away_is_a_passing_error_that_names_it(catalog):
    token = take_lease(catalog)

    def change(connection):
        raise lost_connection()

    with pytest.raises(TransientError, match=r"Pipeline shop: the catalog .* does not answer"):
        catalog.write(Stage.INGEST, token, change)


def test_a_statement_that_the_database_refuses_is_not_retried(catalog):
    token = take_lease(catalog)
    runs = []

    def change(connection):
        runs.append(True)
        connection.execute(text("SELECT 1 FROM oncehouse_nowhere"))

    with pytest.raises(PermanentError, match="oncehouse_nowhere"):
        catalog.write(Stage.INGEST, token, change)
    assert len(runs) == 1


def test_the_clock_is_the_databases_and_does_not_stand_still_within_a_transaction(catalog):
    with catalog.read() as connection:
        connection.execute(select(schema.pipelines))
        first = catalog.now_in(connection)
        second = first
        while second == first:
            second = catalog.now_in(connection)
    assert second > first > 1.7e9


def test_a_snapshot_stays_at_its_moment(catalog):
    token = register_epochs(catalog)
    with catalog.snapshot() as view:
        assert next_epoch(view) == 2
        register(catalog, token, make_registration(2, 10, 20))
        assert next_epoch(view) == 2
        assert read_positions(view) == {(TOPIC, 0): 10}
    assert next_epoch(catalog) == 3
