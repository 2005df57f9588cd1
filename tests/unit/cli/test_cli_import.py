from __future__ import annotations

from pathlib import Path

import pytest

from oncehouse.cli.app import run_command
from oncehouse.config.file_loader import example_text
from oncehouse.ledger.models import FileFormat
from oncehouse.pipeline.external import file_import
from oncehouse.pipeline.progress import Progress
from oncehouse.pipeline.stages.progress_reporter import RunResult


@pytest.fixture
def pipeline_file(tmp_path) -> Path:
    file = tmp_path / "pipeline.yaml"
    file.write_text(example_text())
    return file


def test_the_command_gives_its_words_to_the_import_and_ends_with_its_outcome(
    pipeline_file, monkeypatch, capsys, tmp_path
):
    asked = []

    def fake(_pipeline, job, *, progress, **options):
        asked.append((job, options["wait"]))
        progress(Progress(read=7, done_share=0.5))
        return RunResult(progress=Progress(read=9, done_share=1.0), parked=1)

    monkeypatch.setattr(file_import, "import_files", fake)
    command = [
        "import",
        str(tmp_path),
        str(pipeline_file),
        "--format",
        "csv",
        "--batch-bytes",
        "2MB",
        "--wait",
    ]
    assert run_command(command) == 1, "a parked batch is not in ClickHouse"
    job, wait = asked[0]
    assert (job.place, job.format, job.batch_bytes, wait) == (str(tmp_path), FileFormat.CSV, 2 << 20, True)
    told = capsys.readouterr()
    assert "read 7" in told.out
    assert "done 50%" in told.out
    assert f"importing as {job.name}" in told.err


def test_a_size_that_is_none_and_a_folder_that_is_not_there_are_told(pipeline_file, capsys, tmp_path):
    command = ["import", str(tmp_path), str(pipeline_file), "--format", "csv", "--batch-bytes", "much"]
    assert run_command(command) == 2
    assert "--batch-bytes much" in capsys.readouterr().err
    named = ["import", str(tmp_path), str(pipeline_file), "--format", "csv", "--name", "a/b"]
    assert run_command(named) == 2
    assert "cannot name a query" in capsys.readouterr().err
    gone = ["import", str(tmp_path / "gone"), str(pipeline_file), "--format", "json"]
    assert run_command(gone) == 2
    assert "no such folder" in capsys.readouterr().err


def test_the_same_folder_and_format_are_the_same_import(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path.parent)
    names = {file_import.make_job(place, FileFormat.CSV).name for place in (str(tmp_path), tmp_path.name)}
    assert len(names) == 1
    assert file_import.make_job(str(tmp_path), FileFormat.JSON).name not in names
    assert file_import.make_job(str(tmp_path), FileFormat.CSV, name="mine").name == "mine"
