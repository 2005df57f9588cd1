"""What Spark's Python daemon does before it loads the road."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from oncehouse.pipeline.worker_daemon import leave_archives_out


def make_package(folder: Path, name: str) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").touch()
    return folder / name


def make_archive(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pyspark/__init__.py", "")
    return str(path)


@pytest.fixture
def paths(monkeypatch, tmp_path) -> list[str]:
    """A path on which PySpark stands twice: as an archive in its own folder, and as that folder."""
    installed = tmp_path / "installed"
    own = make_archive(make_package(installed, "pyspark") / "python" / "lib" / "pyspark.zip")
    make_package(installed, "py4j")
    users = make_archive(tmp_path / "shipped" / "users.zip")
    found = [own, users, str(installed)]
    monkeypatch.setattr(sys, "path", list(found))
    monkeypatch.setattr(sys, "path_importer_cache", {})
    return found


def test_archives_of_pysparks_own_folder_leave_the_path_and_others_stay(paths):
    sys.path_importer_cache[paths[0]] = None
    leave_archives_out()
    assert sys.path == paths[1:]
    assert paths[0] not in sys.path_importer_cache


def test_archives_stay_where_pyspark_is_nowhere_else(paths):
    sys.path.remove(paths[2])
    leave_archives_out()
    assert sys.path == paths[:2]


def test_archives_of_another_spark_stay(paths, tmp_path):
    other = make_archive(tmp_path / "spark" / "python" / "lib" / "pyspark.zip")
    sys.path.insert(0, other)
    leave_archives_out()
    assert sys.path[0] == other


def test_an_archive_that_was_reached_by_a_link_is_known(paths, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "installed")
    sys.path[0] = str(tmp_path / "link" / "pyspark" / "python" / "lib" / "pyspark.zip")
    leave_archives_out()
    assert sys.path == paths[1:]
