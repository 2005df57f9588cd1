"""One SQLite catalog in several connections of one process, and in another process that comes and goes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.leases import acquire, list_leases
from oncehouse.ledger.models import Stage


def test_what_is_written_after_another_process_has_closed_the_catalog_is_there_for_all(tmp_path):
    """A process that opens the file once more, as `run --metrics` does, must keep its locks on it."""
    url = f"sqlite:///{tmp_path}/catalog.db"
    driver = Catalog(url, "events")
    driver.prepare()
    monitor = Catalog(url, "events")
    look(url)
    assert Path(f"{tmp_path}/catalog.db-wal").exists(), "the other process has deleted the log that is in use"
    acquire(driver, Stage.INGEST, holder="this test", lease_seconds=60)
    assert "this test" in look(url)
    assert list_leases(monitor) == list_leases(driver)
    driver.close()
    monitor.close()


def look(url: str) -> str:
    script = (
        "import sys; from oncehouse.ledger.catalog.database import Catalog; "
        "from oncehouse.ledger.catalog.leases import list_leases; "
        "catalog = Catalog(sys.argv[1], 'events'); print(list_leases(catalog)); catalog.close()"
    )
    command = [sys.executable, "-c", script, url]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
