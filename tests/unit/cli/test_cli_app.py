"""How commands end: exit codes, one clear message, no trace, no markup, pure JSON."""

import json
import subprocess
import sys

import pytest
import typer

from oncehouse import __version__
from oncehouse.cli import app as command
from oncehouse.cli.app import run_command
from oncehouse.config.file_loader import SCHEMA_FILE_NAME, json_schema_text, load_pipeline
from oncehouse.errors import (
    ConfigurationError,
    DataLossError,
    FencedError,
    FullDiskError,
    LeaseHeldError,
    OncehouseError,
    PermanentError,
    PoisonError,
    TransientError,
)


def fail_with(monkeypatch, error: BaseException) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.callback(invoke_without_command=True)
    def fail(*, debug: bool = False) -> None:
        raise error

    monkeypatch.setattr(command, "app", app)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError, 2),
        (TransientError, 75),
        (FullDiskError, 7),
        (PermanentError, 1),
        (FencedError, 4),
        (LeaseHeldError, 4),
        (DataLossError, 5),
        (PoisonError, 6),
    ],
)
def test_an_error_of_ours_is_one_message_and_its_exit_code(
    error: type[OncehouseError], code, monkeypatch, capsys
):
    fail_with(monkeypatch, error("batch 7 is stuck; look at it"))
    assert run_command([]) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error: batch 7 is stuck; look at it\n")


def test_text_of_a_stranger_is_neither_markup_nor_a_command_to_the_terminal(monkeypatch, capsys):
    fail_with(monkeypatch, PermanentError("[bold]x[/bold] [/] :smile: \x1b[31mred\r\nsecond line"))
    assert run_command([]) == 1
    assert capsys.readouterr().err == "error: [bold]x[/bold] [/] :smile: \\x1b[31mred\\r\nsecond line\n"


def test_an_unexpected_failure_is_short_and_says_how_to_see_the_trace(monkeypatch, capsys):
    fail_with(monkeypatch, KeyError("[red]lost"))
    assert run_command([]) == 70
    err = capsys.readouterr().err
    assert err.startswith("error: unexpected KeyError: '[red]lost'\n")
    assert "oncehouse --debug" in err
    assert "Traceback" not in err


def test_debug_shows_the_trace(monkeypatch, capsys):
    fail_with(monkeypatch, KeyError("lost"))
    assert run_command(["--debug"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_ends_with_130_and_no_trace(monkeypatch, capsys):
    fail_with(monkeypatch, KeyboardInterrupt())
    assert run_command([]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["nonsense"], ["version", "--nonsense"], ["batches", "show"]])
def test_a_wrong_command_line_ends_with_2(arguments, capsys):
    assert run_command(arguments) == 2
    assert capsys.readouterr().out == ""


def test_each_command_stands_in_a_group_of_the_help(capsys):
    commands = typer.main.get_group(command.app).commands
    panels = {name: getattr(inner, "rich_help_panel", None) for name, inner in commands.items()}
    assert {name for name, panel in panels.items() if not isinstance(panel, str)} == set()
    groups = [
        "Start",
        "Pipeline",
        "Repair and change",
        "Deploy",
        "Monitor",
        "Messaging",
        "ETL and model sync",
    ]
    assert list(dict.fromkeys(panels.values())) == groups
    assert run_command(["--help"]) == 0
    shown = capsys.readouterr().out
    assert [shown.index(f" {group} ─") for group in groups] == sorted(
        shown.index(f" {group} ─") for group in groups
    )
    assert "─ Commands ─" not in shown


def test_the_version_is_told(capsys):
    assert run_command(["version"]) == 0
    assert capsys.readouterr().out.startswith(f"oncehouse {__version__} ")
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"oncehouse {__version__} ")
    assert run_command(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["oncehouse"] == __version__


def test_the_version_is_told_without_loading_an_engine():
    code = (
        "import sys; from oncehouse.cli.app import run_command; run_command(['version']);"
        "engines = {'pyspark', 'pyarrow', 'sqlalchemy', 'psycopg', 'clickhouse_connect', 'confluent_kafka', 'django',"
        "'prometheus_client', 'starlette', 'uvicorn'};"
        "print(engines & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_the_console_script_exits_with_the_code_of_the_command(tmp_path):
    code = "from oncehouse.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "check", str(tmp_path / "none.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {tmp_path}/none.yaml: no such file")


def test_init_writes_an_example_that_loads_with_its_schema_beside_it(tmp_path, capsys):
    file = tmp_path / "p.yaml"
    assert run_command(["init", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "file": str(file),
        "schema": str(tmp_path / SCHEMA_FILE_NAME),
    }
    assert load_pipeline(file).pipeline == "events"
    assert (tmp_path / SCHEMA_FILE_NAME).read_text() == json_schema_text()


def test_init_names_the_default_file_and_what_comes_next(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command(["init"]) == 0
    assert "next: edit it, then `oncehouse check pipeline.yaml`" in capsys.readouterr().out
    assert (tmp_path / "pipeline.yaml").is_file()


def test_init_leaves_an_existing_file_alone(tmp_path, capsys):
    file = tmp_path / "p.yaml"
    file.write_text("mine")
    assert run_command(["init", str(file)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert file.read_text() == "mine"


def test_init_into_a_folder_that_is_not_there_is_told(tmp_path, capsys):
    assert run_command(["init", str(tmp_path / "no" / "p.yaml")]) == 2
    assert "cannot be written" in capsys.readouterr().err
