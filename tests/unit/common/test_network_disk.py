"""On which disk a SQLite file is, as the kernel's table of mounts tells it, and that a network disk is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncehouse.cli.app import run_command
from oncehouse.common import network_disk
from oncehouse.common.network_disk import (
    NETWORK_TYPES,
    find_mount,
    parse_mounts,
    read_mount_table,
    refuse_network_disk,
)
from oncehouse.config.pipeline import Pipeline
from oncehouse.errors import ConfigurationError
from oncehouse.etl import open as etl_open
from oncehouse.etl.settings import EtlSettings
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.pipeline.checks.startup import prepare

TABLE = r"""
21 1 253:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
22 21 0:40 /export /mnt rw,noatime shared:2 master:7 - nfs4 server:/export rw,vers=4.2
23 22 0:41 / /mnt/local rw - xfs /dev/vdb rw
24 21 0:42 / /mnt/my\040disk\134n rw - cifs //server/share rw
25 21 0:43 / /auto rw - autofs systemd-1 rw
26 25 0:44 / /auto rw - fuse.sshfs user@host: rw
27 21 0:45 / /mnt/over - tmpfs tmpfs rw
28 27 0:46 / /over/-/lies rw - 9p share rw
a line of another system
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/catalog.db", "ext4"),
        ("/mnt/catalog.db", "nfs4"),
        ("/mntly/catalog.db", "ext4"),
        ("/mnt/local/deep/catalog.db", "xfs"),
        (r"/mnt/my disk\n/catalog.db", "cifs"),
        ("/auto/catalog.db", "fuse.sshfs"),
        ("/over/-/lies/catalog.db", "9p"),
    ],
)
def test_the_innermost_mount_counts_and_the_last_at_one_point(path, expected):
    found = find_mount(Path(path), parse_mounts(TABLE.splitlines()))
    assert found is not None
    assert found.type == expected


def test_the_kernels_own_table_has_the_disk_of_every_path(tmp_path):
    found = find_mount(tmp_path.resolve(), parse_mounts(read_mount_table()))
    assert found is not None
    assert tmp_path.resolve().is_relative_to(found.point)


@pytest.fixture
def network(tmp_path, monkeypatch) -> Path:
    """A folder that the table of mounts takes for a network disk."""
    folder = tmp_path / "network disk"
    folder.mkdir()
    escaped = str(folder).replace(" ", r"\040")
    table = tmp_path / "mountinfo"
    table.write_text(
        f"21 1 253:0 / / rw - ext4 /dev/vda rw\n22 21 0:40 / {escaped} rw shared:1 - nfs4 server:/export rw\n"
    )
    monkeypatch.setattr(network_disk, "_MOUNT_TABLE", table)
    return folder


def make_pipeline(catalog: str, files: Path) -> Pipeline:
    return Pipeline(
        pipeline="events",
        source={"format": "frame", "fields": {"id": "UInt64"}},
        identity={"fields": ["id"]},
        tables=[{"name": "shop.events"}],
        clickhouse={"url": "http://nowhere:8123"},
        ledger={"catalog": catalog, "files": str(files)},
    )


def test_a_link_to_a_network_disk_is_one_and_so_is_a_folder_that_is_not_there_yet(network, tmp_path):
    (tmp_path / "link").symlink_to(network)
    for path in (tmp_path / "link" / "catalog.db", network / "new" / "catalog.db"):
        with pytest.raises(
            ConfigurationError, match=r"database: the SQLite file .* \(nfs4, mounted at "
        ) as caught:
            refuse_network_disk(f"sqlite:///{path}", setting="database")
        assert "move the file" in str(caught.value)
    for url in (f"sqlite:///{tmp_path}/catalog.db", "sqlite://", "postgresql+psycopg://app@nfs/app"):
        refuse_network_disk(url, setting="database")


def test_a_system_without_a_table_of_mounts_refuses_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(network_disk, "_MOUNT_TABLE", tmp_path / "absent")
    refuse_network_disk(f"sqlite:///{tmp_path}/catalog.db", setting="database")


def test_a_run_refuses_a_catalog_on_a_network_disk_before_anything_is_asked_of_it(network, tmp_path):
    pipeline = make_pipeline(f"sqlite:///{network}/catalog.db", tmp_path / "files")
    catalog = Catalog(pipeline.ledger.catalog.get_secret_value(), "events")
    with pytest.raises(ConfigurationError, match=r"ledger\.catalog: the SQLite file .* network disk"):
        prepare(pipeline, catalog, None)
    assert (network / "catalog.db").stat().st_size == 0
    catalog.close()


def test_check_names_a_catalog_on_a_network_disk_as_an_error(network, tmp_path, capsys):
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"""\
pipeline: events
source: {{format: frame, fields: {{id: UInt64}}}}
identity: {{fields: [id]}}
tables: [{{name: shop.events}}]
clickhouse: {{url: "http://localhost:1"}}
ledger: {{catalog: "sqlite:///{network}/catalog.db", files: "{tmp_path}/files"}}
""")
    assert run_command(["check", str(file)]) == ConfigurationError.exit_code
    shown = " ".join(capsys.readouterr().out.split())
    assert "error: catalog: ledger.catalog: the SQLite file" in shown
    assert "Stop all processes that use it, move the file" in shown


def test_etl_refuses_offsets_on_a_network_disk(network):
    settings = EtlSettings.model_validate(
        {
            "clickhouse": {"url": "http://localhost:1"},
            "lineage": "lineage.yaml",
            "offsets": {"store": "catalog", "catalog": f"sqlite:///{network}/offsets.db"},
        }
    )
    with pytest.raises(ConfigurationError, match=r"offsets\.catalog"), etl_open.open_store(settings, None):
        pass


def test_ordinary_disks_are_not_among_those_of_networks():
    assert not NETWORK_TYPES & {"ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "fuseblk"}
