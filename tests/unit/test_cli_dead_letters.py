"""`oncehouse dead-letters` on a real ledger: counts, lists, one letter with its bytes, replay."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from ledger_examples import make_registration, take_lease
from oncehouse.cli.app import run_command
from oncehouse.ledger.files import FileStore
from oncehouse.ledger.records import Counts, DeadLetterFile, RequestKind
from oncehouse.ledger.registering import register
from oncehouse.ledger.requests import open_requests
from oncehouse.pipeline.parts import LETTER_SCHEMA, write_letters

AT = datetime(2026, 1, 1, tzinfo=UTC)


def put_letters(catalog, folder, epoch, letters):
    """Register an epoch that read nothing but these letters: (offset, value, reason)."""
    rows = [
        {
            "topic": "events",
            "partition": 0,
            "offset": offset,
            "timestamp": AT,
            "key": None,
            "value": value,
            "reason": reason,
            "detail": f"detail of {offset} [red]",
        }
        for offset, value, reason in letters
    ]
    table = pa.Table.from_pylist(rows, schema=LETTER_SCHEMA)
    file = FileStore(str(folder)).put(f"letters-{epoch}.parquet", lambda path: write_letters(path, table))
    reasons = {
        reason: sum(row["reason"] == reason for row in rows) for reason in {row["reason"] for row in rows}
    }
    return make_registration(
        epoch,
        start=(epoch - 1) * len(rows),
        end=epoch * len(rows),
        counts=Counts(read=len(rows), dead_letter=len(rows)),
        key_files=(),
        parts=(),
        dead_letter_files=(
            DeadLetterFile(
                dead_letter_file=f"letters-{epoch}", epoch=epoch, rows=len(rows), reasons=reasons, file=file
            ),
        ),
    )


@pytest.fixture
def letters(catalog, file):
    folder = file.parent / "ledger" / "files"
    token = take_lease(catalog)
    first = [(1, b"\xff\x1b[31m", "bad_utf8"), (2, b"{}", "missing_field")]
    second = [(3, b"no json", "not_json"), (4, None, "missing_field")]
    register(catalog, token, put_letters(catalog, folder, 1, first))
    register(catalog, token, put_letters(catalog, folder, 2, second))


def run_json(capsys, *arguments):
    assert run_command([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("letters")
def test_letters_are_counted_by_reason_and_listed_newest_first(file, capsys):
    told = run_json(capsys, "dead-letters", "list", str(file))
    assert told["reasons"] == {"missing_field": 2, "bad_utf8": 1, "not_json": 1}
    assert [letter["offset"] for letter in told["dead_letters"]] == [4, 3, 2, 1]
    assert told["dead_letters"][1]["hint"] == "no json"


@pytest.mark.usefixtures("letters")
def test_the_list_is_for_people_too(file, capsys):
    assert run_command(["dead-letters", "list", str(file)]) == 0
    out = capsys.readouterr().out
    assert "events/0/4" in out
    assert "2026-01-01T00:00:00+00:00" in out
    assert "detail of 4 [red]" in out


@pytest.mark.usefixtures("letters")
def test_letters_are_chosen_by_reason_and_number(file, capsys):
    told = run_json(capsys, "dead-letters", "list", str(file), "--reason", "missing_field", "--limit", "1")
    assert [letter["offset"] for letter in told["dead_letters"]] == [4]
    told = run_json(capsys, "dead-letters", "list", str(file), "--limit", "3")
    assert [letter["offset"] for letter in told["dead_letters"]] == [4, 3, 2]


@pytest.mark.usefixtures("letters")
def test_a_reason_that_no_letter_has_is_answered_with_the_nearest(file, capsys):
    assert run_command(["dead-letters", "list", str(file), "--reason", "no_json"]) == 2
    assert "did you mean 'not_json'?" in capsys.readouterr().err


@pytest.mark.usefixtures("letters")
def test_one_letter_is_shown_with_its_bytes_and_cannot_hurt_the_terminal(file, capsys):
    assert run_command(["dead-letters", "show", "events/0/1", str(file)]) == 0
    out = capsys.readouterr().out
    assert "\\xff\\x1b[31m" in out
    assert "\x1b" not in out
    told = run_json(capsys, "dead-letters", "show", "events/0/3", str(file))
    assert (told["value"], told["value_text"], told["reason"]) == ("bm8ganNvbg==", "no json", "not_json")


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("position", ["events/0/9", "events", "events/x/1", "events/0/"])
def test_a_letter_that_is_not_there_or_no_position_is_told(position, file, capsys):
    assert run_command(["dead-letters", "show", position, str(file)]) == 2
    assert position in capsys.readouterr().err


@pytest.mark.usefixtures("letters")
def test_replaying_is_left_as_a_request(file, catalog, capsys):
    assert (
        run_command(["dead-letters", "replay", str(file), "--reason", "not_json", "--at", "events/0/3"]) == 0
    )
    (request,) = open_requests(catalog)
    assert request.kind is RequestKind.REPLAY_DEAD_LETTERS
    assert request.arguments == {"reason": "not_json", "positions": [["events", 0, 3]]}


def test_nothing_to_replay_leaves_no_request(file, catalog, capsys):
    assert run_command(["dead-letters", "replay", str(file)]) == 2
    assert "no dead letters" in capsys.readouterr().err
    assert open_requests(catalog) == ()


def test_no_letters_are_told_as_such(file, catalog, capsys):
    assert run_command(["dead-letters", "list", str(file)]) == 0
    assert capsys.readouterr().out == "no dead letters\n"
