"""What `check` sees of a real primary and its standby, also without the rights of an administrator."""

from __future__ import annotations

from pathlib import Path

import psycopg

from oncehouse.cli.etl.app import inspect_offsets
from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.etl.open import open_etl
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.pipeline.checks.catalog_durability import inspect_catalog_durability
from postgres_pair import PostgresPair, wait_for


def look(url: str) -> dict[str, Level]:
    catalog = Catalog(url, "shop")
    try:
        return {finding.what: finding.level for finding in inspect_catalog_durability(catalog)}
    finally:
        catalog.close()


def look_at_offsets(url: str, folder: Path) -> list[str]:
    """What `etl check` says of offsets that are kept there."""
    (folder / "lineage").mkdir()
    (folder / "lineage" / "shop.yaml").write_text("topics:\n  - {topic: Stage, dst: stage.orders}\n")
    (folder / "etl.yaml").write_text(
        "clickhouse: {url: 'http://nowhere.invalid:1'}\nlineage: lineage\n"
        f"offsets: {{store: catalog, catalog: '{url}'}}\n"
    )
    with open_etl(folder / "etl.yaml") as etl:
        found = inspect_offsets(etl)
    assert {finding.where for finding in found} == {"offsets.catalog"}
    return [finding.what for finding in found if finding.level is Level.WARNING]


def test_an_asynchronous_standby_is_warned_of_and_a_synchronous_one_is_not(tmp_path_factory, tmp_path):
    with PostgresPair(tmp_path_factory.mktemp("pair")) as pair:
        with psycopg.connect(pair.primary.dsn, autocommit=True) as connection:
            connection.execute("CREATE ROLE loader LOGIN")
        as_loader = pair.url.replace("//postgres@", "//loader@")
        for url in (pair.url, as_loader):
            found = look(url)
            # Off in this very pair, so that it starts sooner.
            assert [level for what, level in found.items() if what.startswith("fsync is off")] == [
                Level.WARNING
            ]
            assert [what for what in found if "synchronous_standby_names is empty" in what]
        warnings = look_at_offsets(pair.url, tmp_path)
        assert [what for what in warnings if "synchronous_standby_names is empty" in what]
        pair.primary.ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
        pair.primary.ask("SELECT pg_reload_conf()")
        with psycopg.connect(pair.primary.dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE waits_for_the_standby ()")
        assert not [what for what in look(as_loader) if "standby" in what]
        pair.primary.ask("ALTER ROLE loader SET synchronous_commit = remote_write")
        assert [what for what in look(as_loader) if "synchronous_commit is remote_write" in what]


def test_a_standby_that_is_not_connected_is_seen_by_its_slot(tmp_path_factory):
    with PostgresPair(tmp_path_factory.mktemp("pair")) as pair:
        pair.primary.ask("CREATE ROLE loader LOGIN")
        pair.primary.ask("SELECT pg_create_physical_replication_slot('second', true)")
        pair.standby.ask("ALTER SYSTEM SET primary_slot_name = 'second'")
        pair.standby.ask("SELECT pg_reload_conf()")
        active = "SELECT active FROM pg_replication_slots WHERE slot_name = 'second'"
        wait_for(lambda: pair.primary.ask(active) is True, "the standby to use its slot")
        as_loader = pair.url.replace("//postgres@", "//loader@")
        wait_for(
            lambda: "a standby follows and synchronous_standby_names" in "".join(look(as_loader)),
            "the standby",
        )
        pair.cut_off()
        wait_for(lambda: pair.primary.ask(active) is False, "the slot to be free")
        (found,) = [what for what in look(as_loader) if "standby" in what]
        assert found.startswith("the replication slot second is kept for a standby that is not connected")
