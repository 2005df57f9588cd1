"""`oncehouse doctor`: what is missing on this machine is named, with what to do; completion knows the commands."""

import json
import resource
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from oncehouse.cli import machine_checks
from oncehouse.cli.app import run_command
from oncehouse.cli.machine_checks import (
    check_encoding,
    check_folder,
    check_free_space,
    check_host_name,
    check_machine,
    check_memory,
    check_open_files,
    check_port,
    list_addresses,
    list_extras,
)
from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.config.file_loader import load_pipeline

GB = 1 << 30


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def write_pipeline(tmp_path: Path, *, kafka: str, clickhouse: str, catalog: str | None = None) -> Path:
    file = tmp_path / "pipeline.yaml"
    assert run_command(["init", str(file)]) == 0
    text = file.read_text().replace("localhost:9092", kafka).replace("http://localhost:8123", clickhouse)
    if catalog is not None:
        text = text.replace("sqlite:///ledger/catalog.db", catalog)
    file.write_text(text)
    return file


def test_a_machine_that_can_run_the_tests_lacks_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command(["doctor"]) == 0
    shown = capsys.readouterr().out
    for part in ("python", "packages", "java", "memory", "open files", "host name", "disk"):
        assert f" {part} " in shown
    assert shown.endswith("nothing is missing here\n")


def test_ports_and_disk_of_a_pipeline_are_looked_at_too(listening, tmp_path, monkeypatch, capsys):
    write_pipeline(tmp_path, kafka=f"127.0.0.1:{listening}", clickhouse=f"http://127.0.0.1:{listening}")
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert run_command(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"]
    found = {one["where"]: one["what"] for one in told["findings"]}
    assert f"127.0.0.1:{listening} answers" in found["kafka"]
    assert f"127.0.0.1:{listening} answers" in found["clickhouse"]
    assert "the ledger's files" in found["disk"]


def test_a_port_that_does_not_answer_is_an_error_with_advice(listening, tmp_path, capsys):
    file = write_pipeline(tmp_path, kafka="127.0.0.1:1", clickhouse=f"http://127.0.0.1:{listening}")
    capsys.readouterr()
    assert run_command(["doctor", str(file)]) == 2
    shown = capsys.readouterr().out
    assert "127.0.0.1:1 does not answer" in shown
    assert "kafka: Start it, or correct the address" in shown


def test_a_missing_java_or_package_is_an_error(monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setattr(machine_checks, "PACKAGES", ("pyarrow", "no-such-package"))
    found = {one.where: one for one in check_machine() if one.level is Level.ERROR}
    assert "There is no Java in JAVA_HOME (/nowhere)" in found["java"].what
    assert "Install Java 17 or 21" in found["java"].advice
    assert "no-such-package cannot be found" in found["packages"].what


def test_an_extra_is_here_when_all_its_packages_are():
    told = [
        "pyarrow>=26",
        'pyarrow>=26; extra == "half"',
        'no-such-package>=1; extra == "half"',
        "sqlalchemy[asyncio]>=2; extra == 'whole'",
    ]
    assert list_extras(told) == ["whole"]


def test_addresses_have_the_ports_that_the_pipeline_would_take(tmp_path):
    file = write_pipeline(
        tmp_path,
        kafka="a:1, [::1]:2",
        clickhouse="https://house",
        catalog="postgresql+psycopg://user:secret@store/ledger",
    )
    assert list(list_addresses(load_pipeline(file))) == [
        ("kafka", ("a", 1)),
        ("kafka", ("::1", 2)),
        ("clickhouse", ("house", 8443)),
        ("catalog", ("store", 5432)),
    ]


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (check_memory(8 * GB, 2), Level.OK),
        (check_memory(3 * GB, 2), Level.WARNING),
        (check_memory(GB, 1), Level.ERROR),
        (check_open_files(65_536), Level.OK),
        (check_open_files(resource.RLIM_INFINITY), Level.OK),
        (check_open_files(256), Level.WARNING),
        (check_encoding("utf-8"), Level.OK),
        (check_encoding("ascii"), Level.WARNING),
        (check_free_space("x", "/x", 9 * GB), Level.OK),
        (check_free_space("x", "/x", GB), Level.WARNING),
        (check_free_space("x", "/x", 1), Level.ERROR),
    ],
)
def test_what_is_scarce_is_told_with_advice(finding, level):
    assert finding.level is level
    assert bool(finding.advice) is (level is not Level.OK)


def test_a_folder_that_is_not_there_yet_is_judged_by_the_disk_it_will_be_on(tmp_path, monkeypatch):
    rooms = {tmp_path: SimpleNamespace(free=7 * GB)}
    monkeypatch.setattr(shutil, "disk_usage", rooms.__getitem__)
    assert check_folder("x", tmp_path / "not" / "yet").what.startswith("7GB are free")


def test_a_host_name_without_an_address_is_a_warning():
    assert check_host_name("localhost").level is Level.OK
    assert check_host_name("no-such-host.invalid").level is Level.WARNING


def test_a_name_that_cannot_be_resolved_is_an_error_not_a_trace():
    assert check_port("kafka", ("no-such-host.invalid", 9092)).level is Level.ERROR


def test_the_shell_completes_commands(monkeypatch, capsys):
    monkeypatch.setenv("_ONCEHOUSE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "oncehouse batches ")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert run_command([]) == 0
    assert capsys.readouterr().out.split() == ["list", "show", "views", "retry"]


def test_a_mistyped_command_or_option_is_answered_with_the_nearest(capsys):
    assert run_command(["doctr"]) == 2
    assert "Did you mean 'doctor'?" in capsys.readouterr().err
    assert run_command(["doctor", "--jsn"]) == 2
    assert "--json" in capsys.readouterr().err
