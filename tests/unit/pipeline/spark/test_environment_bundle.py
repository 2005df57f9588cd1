"""A bundle holds what is needed and nothing that a cluster has already, and its Python runs with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from oncehouse.cli.app import run_command
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.spark import environment_bundle
from oncehouse.pipeline.spark.environment_bundle import OF_SPARK, Bundle, gather_packages, write_packages


@pytest.fixture
def install(tmp_path, monkeypatch):
    """`install("alpha", "beta>=2; extra == 'more'")`: an installed package of one module, with what it needs."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    def make(name: str, *needs: str) -> None:
        site = tmp_path / "site"
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text(f"said = {name!r}\n")
        (site / "__pycache__").mkdir(exist_ok=True)
        (site / "__pycache__" / f"{name}.pyc").write_bytes(b"compiled")
        required = "".join(f"Requires-Dist: {need}\n" for need in needs)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{required}")
        names = (f"{name}.py", f"__pycache__/{name}.pyc", f"{name}-1.0.dist-info/METADATA", "../bin/script")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in names))
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / "script").touch()

    return make


def names_in(file: Path) -> list[str]:
    with tarfile.open(file) as archive:
        return archive.getnames()


def test_what_a_package_needs_comes_with_it_and_extras_only_where_asked_for(install):
    install("alpha", "beta-b (>=1)", "gamma[fast]; python_version > '3'", "zeta; extra == 'zoo'", "absent")
    install("beta_b")
    install("gamma", "delta; extra == 'fast'", "epsilon; extra == 'slow'")
    for name in ("delta", "epsilon", "zeta"):
        install(name, "alpha")
    assert sorted(gather_packages(["alpha"])) == ["alpha", "beta-b", "delta", "gamma"]


def test_oncehouse_needs_no_spark_of_the_bundle_but_what_tasks_compute_with():
    found = gather_packages(["oncehouse[pipeline,postgres,protobuf]"])
    assert not OF_SPARK & set(found)
    assert {"pyarrow", "numpy", "polars", "polars-hash", "clickhouse-connect", "psycopg-binary"} <= set(found)


def test_a_package_that_is_not_installed_is_refused_by_name(install):
    with pytest.raises(ConfigurationError, match="package 'no-such-package' is not installed"):
        gather_packages(["no-such-package"])


def test_the_archive_holds_modules_and_metadata_and_nothing_compiled_or_outside(install, tmp_path):
    install("alpha")
    write_packages(tmp_path / "environment.tar.gz", gather_packages(["alpha"]))
    names = names_in(tmp_path / "environment.tar.gz")
    assert {
        "lib/alpha.py",
        "lib/alpha-1.0.dist-info/METADATA",
        "lib/oncehouse/errors.py",
        "bin/python",
    } <= set(names)
    assert not [name for name in names if name.endswith((".pyc", "/script")) or name.startswith(("/", ".."))]


def test_the_same_packages_make_the_same_bytes(install, tmp_path):
    install("alpha")
    for name in ("one", "two"):
        write_packages(tmp_path / name, gather_packages(["alpha"]))
        os.utime(tmp_path / "site" / "alpha.py", (1, 1))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_its_python_runs_the_bundles_packages_before_those_of_the_machine(install, tmp_path):
    install("alpha")
    write_packages(tmp_path / "environment.tar.gz", gather_packages(["alpha"]))
    with tarfile.open(tmp_path / "environment.tar.gz") as archive:
        archive.extractall(tmp_path / "environment", filter="data")
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / "alpha.py").write_text("said = 'the one of the machine'\n")
    said = subprocess.run(
        ["./environment/bin/python", "-c", "import alpha, oncehouse; print(alpha.said, oncehouse.__file__)"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "machine"), "ONCEHOUSE_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said == f"alpha {tmp_path}/environment/lib/oncehouse/__init__.py\n"


def test_the_command_tells_size_and_packages_and_what_to_write_into_the_file(tmp_path, monkeypatch, capsys):
    file = tmp_path / "environment.tar.gz"
    written = Bundle(file=file, size_bytes=221_000_000, python="3.11", packages={"alpha": "1.0", "beta": "2"})
    monkeypatch.setattr(environment_bundle, "write_bundle", lambda *_: written)
    assert run_command(["bundle", str(file)]) == 0
    said = capsys.readouterr()
    assert f"{file}: 211MB, 2 packages for Python 3.11\n" in said.out + said.err
    assert f"    environment: {file}\n" in said.out + said.err
    assert run_command(["bundle", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["packages"] == {"alpha": "1.0", "beta": "2"}


def test_a_place_that_cannot_be_written_is_told_and_nothing_is_left(tmp_path, capsys):
    assert run_command(["bundle", str(tmp_path / "nowhere" / "environment.tar.gz")]) == 2
    assert "cannot be written" in capsys.readouterr().err
