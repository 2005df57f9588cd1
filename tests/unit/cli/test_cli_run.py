"""`oncehouse run` around an engine: what it is asked for, how it is told to stop, and how it ends."""

import json
import signal
import subprocess
import sys
import textwrap
import types

import pytest

from oncehouse.cli.app import run_command
from oncehouse.config.file_loader import example_text
from oncehouse.errors import LeaseHeldError
from oncehouse.ledger.models import Request, RequestKind
from oncehouse.pipeline.progress import Progress

# An engine that says when it runs and ends when it is told to; the second kind never ends.
PROGRAM = """
import sys, types, time
from types import SimpleNamespace
from oncehouse.cli.app import main
from oncehouse.pipeline.progress import Progress

def run_pipeline(pipeline, *, once, stop, progress, say, wait, only):
    print("running", flush=True)
    stop.wait()
    print("asked to stop", flush=True)
    while {stubborn}:
        time.sleep(1)
    progress(Progress(read=7))
    return SimpleNamespace(progress=Progress(read=7), parked=0, refused=())

engine = types.ModuleType("oncehouse.pipeline.run")
engine.run_pipeline = run_pipeline
sys.modules["oncehouse.pipeline.run"] = engine
main()
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pipeline.yaml"
    path.write_text(example_text())
    return path


@pytest.fixture
def engine(monkeypatch):
    """An engine that remembers what it was asked for; its answer and its failure may be set."""
    made = types.ModuleType("oncehouse.pipeline.run")
    made.asked, made.parked, made.refused, made.failure = {}, 0, (), None

    def run_pipeline(pipeline, **asked):
        made.asked = {"pipeline": pipeline.pipeline, **asked}
        asked["progress"](Progress(read=1))
        asked["say"]("[red]hello")
        if made.failure is not None:
            raise made.failure
        asked["progress"](Progress(read=2))
        return types.SimpleNamespace(progress=Progress(read=3), parked=made.parked, refused=made.refused)

    made.run_pipeline = run_pipeline
    monkeypatch.setitem(sys.modules, "oncehouse.pipeline.run", made)
    return made


@pytest.fixture
def start(file):
    """Starts a run in a process of its own and returns it once its engine runs."""
    started = []

    def begin(*, stubborn: bool) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM.format(stubborn=stubborn)), "run", str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "running\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_the_engine_is_asked_for_what_the_command_line_says(file, engine):
    assert run_command(["run", str(file)]) == 0
    assert (engine.asked["pipeline"], engine.asked["once"], engine.asked["wait"]) == ("events", False, True)
    assert run_command(["run", str(file), "--once", "--no-wait"]) == 0
    assert (engine.asked["once"], engine.asked["wait"]) == (True, False)


def test_progress_goes_to_standard_output_and_messages_beside_it(file, engine, capsys):
    assert run_command(["run", str(file)]) == 0
    out, err = capsys.readouterr()
    assert [line.partition(" (")[0] for line in out.splitlines()] == ["read 1", "read 2"]
    assert err == "[red]hello\n"


def test_json_is_one_object_a_line_with_the_result_at_the_end(file, engine, capsys):
    assert run_command(["run", str(file), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["event"], line["read"]) for line in lines] == [("progress", 1), ("progress", 2), ("end", 3)]
    assert (lines[-1]["parked"], lines[-1]["refused"]) == (0, [])


def test_parked_batches_are_told_and_make_a_single_run_fail(file, engine, capsys):
    engine.parked = 2
    assert run_command(["run", str(file), "--once"]) == 1
    assert "2 batches are parked" in capsys.readouterr().err
    assert run_command(["run", str(file)]) == 0


def test_refused_requests_are_told_and_make_a_single_run_fail(file, engine, capsys):
    kind = RequestKind.REFILL_TABLE
    engine.refused = (
        Request(request=7, kind=kind, arguments={}, created_at=1.0, result="refused: no table"),
    )
    assert run_command(["run", str(file), "--once"]) == 1
    assert "request 7 (refill-table) was refused: no table" in capsys.readouterr().err
    assert run_command(["run", str(file)]) == 0


def test_a_failure_of_the_engine_ends_with_its_own_code(file, engine, capsys):
    engine.failure = LeaseHeldError("host-7 runs it")
    assert run_command(["run", str(file)]) == 4
    assert capsys.readouterr().err.endswith("error: host-7 runs it\n")


def test_signal_handlers_are_given_back(file, engine):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert run_command(["run", str(file)]) == 0
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_lets_what_has_begun_finish(number, code, start):
    process = start(stubborn=False)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out.startswith("asked to stop\nread 7 ")
    assert err.startswith("stopping: what has begun is finished first")
    assert "Traceback" not in err


def test_a_second_signal_ends_at_once(start):
    process = start(stubborn=True)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "asked to stop\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_run_that_does_not_stop_in_time_ends_at_once(number, code, file, start):
    file.write_text(example_text() + "\nstop_within: 1s\n")
    process = start(stubborn=True)
    process.send_signal(number)
    assert process.stdout.readline() == "asked to stop\n"
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "did not finish within 1 s (stop_within)" in err
    assert "Traceback" not in err
