"""Settings of PostgreSQL under which it may lose transactions of the catalog that it has confirmed."""

from __future__ import annotations

import pytest

from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.postgres_settings import PostgresFacts
from oncehouse.pipeline.checks.catalog_durability import check_catalog_durability, inspect_catalog_durability

SOUND = {"synchronous_commit": "on", "synchronous_standby_names": "", "fsync": "on", "full_page_writes": "on"}


@pytest.mark.parametrize(
    ("changes", "standbys", "named"),
    [
        ({"fsync": "off"}, 0, ["fsync is off"]),
        ({"full_page_writes": "off"}, 0, ["full_page_writes is off"]),
        ({"synchronous_commit": "off"}, 0, ["synchronous_commit is off"]),
        ({}, 1, ["a standby follows and synchronous_standby_names is empty"]),
        ({}, 2, ["2 standbys follow and synchronous_standby_names is empty"]),
        (
            {"synchronous_standby_names": "*", "synchronous_commit": "local"},
            1,
            ["synchronous_commit is local"],
        ),
        (
            {"synchronous_standby_names": "*", "synchronous_commit": "remote_write"},
            1,
            ["synchronous_commit is remote_write"],
        ),
        (
            {"synchronous_commit": "off"},
            1,
            ["synchronous_commit is off", "synchronous_standby_names is empty"],
        ),
    ],
)
def test_each_way_to_lose_transactions_is_a_warning_with_its_remedy(changes, standbys, named):
    found = list(check_catalog_durability(PostgresFacts(settings=SOUND | changes, standbys=standbys)))
    assert [finding.level for finding in found] == [Level.WARNING] * len(named)
    for finding, words in zip(found, named, strict=True):
        assert words in finding.what
        assert finding.advice


@pytest.mark.parametrize(
    ("standbys", "slots", "named"),
    [
        (
            0,
            ("two",),
            "the replication slot two is kept for a standby that is not connected and synchronous_standby",
        ),
        (
            1,
            ("two", "x"),
            "a standby follows and the replication slots two, x are kept for a standby that is not con",
        ),
    ],
)
def test_a_slot_shows_a_standby_that_is_away(standbys, slots, named):
    facts = PostgresFacts(settings=SOUND, standbys=standbys, idle_slots=slots)
    (found,) = check_catalog_durability(facts)
    assert found.level is Level.WARNING
    assert found.what.startswith(named)
    assert found.advice.endswith("run: SELECT pg_drop_replication_slot('two')")
    synchronous = SOUND | {"synchronous_standby_names": "*"}
    (found,) = check_catalog_durability(
        PostgresFacts(settings=synchronous, standbys=standbys, idle_slots=slots)
    )
    assert found.level is Level.OK


@pytest.mark.parametrize(
    ("changes", "standbys"),
    [
        ({}, 0),
        ({"synchronous_standby_names": "*"}, 1),
        ({"synchronous_standby_names": "*", "synchronous_commit": "remote_apply"}, 1),
        ({"synchronous_commit": "local"}, 0),
        ({"synchronous_commit": "remote_write"}, 0),
    ],
)
def test_what_is_right_says_what_cannot_be_seen(changes, standbys):
    (found,) = check_catalog_durability(PostgresFacts(settings=SOUND | changes, standbys=standbys))
    assert found.level is Level.OK
    assert "cannot be seen from here" in found.what


def test_sqlite_has_none_of_it(tmp_path):
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db", "shop")
    assert inspect_catalog_durability(catalog) == ()
    catalog.close()
