"""A replica that lags answers the verify of a model's sync; see `test_lagging_replica.py`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from oncehouse.sync.verify.verify import verify
from replica_stand_in import ReplicaStandIn
from replicated_tables import UNTIL_RELEASED, leave_out_sync, released_at_sync
from synced_shop import add_people, open_synced_shop

from sync_shop.clickhouse_models import CustomerSync  # isort: skip - after the settings of synced_shop


def differences_on_a_lagging_replica(replicas: ReplicaStandIn, postgres_url: str, database: str) -> dict:
    address = SimpleNamespace(place=SimpleNamespace(ports={"http": replicas.port}))
    with open_synced_shop(postgres_url, address, database, (CustomerSync,)) as shop:
        add_people(shop, 20)
        CustomerSync.sync_batch_from_storage()
        replicas.lag_seconds = UNTIL_RELEASED
        add_people(shop, 5)
        CustomerSync.sync_batch_from_storage()
        replicas.route(1)
        with released_at_sync(replicas):
            report = verify(CustomerSync, keys_a_range=8)
    return {kind.value: len(keys) for kind, keys in report.differences.items() if keys}


@pytest.mark.scenario("lagging replica answers a sync verify")
def test_a_sync_is_verified_on_a_replica_that_has_all_rows(replicas, postgres_url, database):
    assert differences_on_a_lagging_replica(replicas, postgres_url, database) == {}


@pytest.mark.defect("lagging replica answers a sync verify")
def test_a_sync_that_is_verified_on_a_lagging_replica_is_noticed(
    replicas, postgres_url, database, monkeypatch
):
    leave_out_sync(monkeypatch)
    assert differences_on_a_lagging_replica(replicas, postgres_url, database) == {"missing": 5}
