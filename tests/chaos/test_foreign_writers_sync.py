"""Others write into a table of model sync between a lost answer and the retry, until its token is forgotten."""

from __future__ import annotations

from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from changed_syncs import changed
from oncehouse.devstack.proxies.fault_proxy import FaultProxy
from oncehouse.devstack.proxies.faults import DropAnswer
from oncehouse.errors import TransientError
from oncehouse.sync.rounds import round as round_
from synced_shop import add_people, open_synced_shop

from oncehouse.sync.django import Append  # isort: skip - after the settings of synced_shop
from sync_shop.clickhouse_models import CustomerSync  # isort: skip

PEOPLE = 20


def sync_after_a_lost_answer(
    clickhouse, postgres_url: str, database: str, *, others: int = 12, forgetful_view: bool = False
) -> tuple[int, int, int]:
    """Rows of people, different people, and rows that a materialized view has seen."""
    with FaultProxy(server_port=clickhouse.place.ports["http"]) as proxy:
        address = SimpleNamespace(place=SimpleNamespace(ports={"http": urlsplit(proxy.url).port}))
        with (
            open_synced_shop(postgres_url, address, database, (CustomerSync,)) as shop,
            changed({CustomerSync: {"engine": Append()}}),
        ):
            client = CustomerSync.open_clickhouse()
            client.command("ALTER TABLE customers MODIFY SETTING non_replicated_deduplication_window = 10")
            client.command(
                "CREATE TABLE seen (name String) ENGINE = MergeTree ORDER BY name "
                "SETTINGS non_replicated_deduplication_window = 100000"
            )
            client.command("CREATE MATERIALIZED VIEW seeing TO seen AS SELECT name FROM customers")
            add_people(shop, PEOPLE)
            proxy.inject(DropAnswer())
            with pytest.raises(TransientError):
                CustomerSync.sync_batch_from_storage()
            assert proxy.happened[DropAnswer] == 1
            if forgetful_view:
                client.command("ALTER TABLE seen MODIFY SETTING non_replicated_deduplication_window = 0")
            for number in range(others):
                client.command(f"INSERT INTO customers (name) VALUES ('other {number}')")
            CustomerSync.sync_batch_from_storage()
            assert shop.waiting(CustomerSync) == []
            (own,) = client.query(
                "SELECT count(), uniqExact(id) FROM customers WHERE name NOT LIKE 'other %'"
            )
            (seen,) = client.query("SELECT count() FROM seen WHERE name NOT LIKE 'other %'")
    return int(own[0]), int(own[1]), int(seen[0])


@pytest.mark.scenario("foreign writers push a sync's token out")
def test_a_batch_of_a_sync_that_is_there_is_not_inserted_again(clickhouse, postgres_url, database):
    assert sync_after_a_lost_answer(clickhouse, postgres_url, database) == (PEOPLE, PEOPLE, PEOPLE)


@pytest.mark.scenario("foreign writers push a sync's token out")
def test_a_view_that_has_forgotten_the_token_gets_no_row_twice(clickhouse, postgres_url, database):
    found = sync_after_a_lost_answer(clickhouse, postgres_url, database, others=0, forgetful_view=True)
    assert found == (PEOPLE, PEOPLE, PEOPLE)


@pytest.mark.defect("foreign writers push a sync's token out")
def test_a_sync_that_overlooks_the_blocks_of_others_is_noticed(
    clickhouse, postgres_url, database, monkeypatch
):
    monkeypatch.setattr(round_, "needs_no_resend", lambda *_: False)
    rows, people, seen = sync_after_a_lost_answer(clickhouse, postgres_url, database)
    assert (rows, people, seen) == (2 * PEOPLE, PEOPLE, PEOPLE)
