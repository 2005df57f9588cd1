"""`oncehouse dead-letters` on a real ledger: counts, lists, one letter with its bytes, replay."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from ledger_examples import make_registration, take_lease
from oncehouse.cli.app import run_command
from oncehouse.ledger.catalog.epochs import list_dead_letter_files
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.catalog.requests import open_requests
from oncehouse.ledger.models import Counts, DeadLetterFile, DeadLetterKind, RequestKind
from oncehouse.ledger.storage.file_store import FileStore
from oncehouse.pipeline.ingest.part_files import DEAD_LETTER_SCHEMA, read_rows, write_dead_letters

AT = datetime(2026, 1, 1, tzinfo=UTC)


def put_dead_letters(catalog, folder, epoch, letters):
    """Register an epoch that read nothing but these letters: (offset, value, reason)."""
    rows = [
        {
            "topic": "events",
            "partition": 0,
            "offset": offset,
            "row": 0,
            "timestamp": AT,
            "key": None,
            "value": value,
            "reason": reason,
            "detail": f"detail of {offset} [red]",
        }
        for offset, value, reason in letters
    ]
    table = pa.Table.from_pylist(rows, schema=DEAD_LETTER_SCHEMA)
    file = FileStore(str(folder)).put(
        f"letters-{epoch}.parquet", lambda path: write_dead_letters(path, table)
    )
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
    register(catalog, token, put_dead_letters(catalog, folder, 1, first))
    register(catalog, token, put_dead_letters(catalog, folder, 2, second))


def run_json(capsys, *arguments):
    assert run_command([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("letters")
def test_letters_are_counted_by_reason_and_listed_newest_first(file, capsys):
    told = run_json(capsys, "dead-letters", "list", str(file))
    assert told["reasons"] == {"missing_field": 2, "bad_utf8": 1, "not_json": 1}
    assert [letter["offset"] for letter in told["dead_letters"]] == [4, 3, 2, 1]
    assert told["dead_letters"][1]["begins"] == "no json"


@pytest.mark.usefixtures("letters")
def test_the_list_is_for_people_too(file, capsys):
    assert run_command(["dead-letters", "list", str(file)]) == 0
    out = capsys.readouterr().out
    assert "events/0/4" in out
    assert "2026-01-01T00:00:00+00:00" in out
    assert "detail of 4 [red]" in out
    assert max(len(line) for line in out.splitlines()) <= 80


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
    assert request.arguments == {"reason": "not_json", "positions": [["events", 0, 3, 3]]}


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        (["--topic", "events"], [4, 3, 2, 1]),
        (["--topic", "other"], []),
        (["--at", "events/0/2-3"], [3, 2]),
        (["--at", "events/0/1", "--at", "events/0/4"], [4, 1]),
        (["--since", "2026-01-01"], [4, 3, 2, 1]),
        (["--since", "2026-01-01T00:00:01"], []),
        (["--until", "2026-01-01T01:00:00+01:00"], []),
        (["--until", "2026-01-01T00:00:01Z", "--reason", "not_json"], [3]),
    ],
)
def test_letters_are_chosen_by_topic_time_and_position(options, offsets, file, capsys):
    told = run_json(capsys, "dead-letters", "list", str(file), *options)
    assert [letter["offset"] for letter in told["dead_letters"]] == offsets


@pytest.mark.usefixtures("letters")
def test_the_next_page_goes_on_behind_the_last(file, capsys):
    assert run_command(["dead-letters", "list", str(file), "--limit", "3"]) == 0
    place = capsys.readouterr().out.rpartition("--after ")[2].strip()
    told = run_json(capsys, "dead-letters", "list", str(file), "--limit", "3", "--after", place)
    assert ([letter["offset"] for letter in told["dead_letters"]], told["next"]) == ([1], None)


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize(
    ("option", "text"),
    [("--since", "soon"), ("--at", "events/0/x"), ("--at", "events/0/5-"), ("--after", "x")],
)
def test_what_cannot_be_understood_is_named(option, text, file, capsys):
    assert run_command(["dead-letters", "list", str(file), option, text]) == 2
    assert repr(text) in capsys.readouterr().err


def edits_of(catalog, folder):
    """What the open requests would have decoded: (offset, original, edited)."""
    asked = {request.arguments["edits"] for request in open_requests(catalog)}
    files = [
        found.file
        for found in list_dead_letter_files(catalog, kind=DeadLetterKind.EDIT)
        if found.dead_letter_file.partition("-")[0] in asked
    ]
    rows = [row for found in files for row in read_rows(FileStore(str(folder)), found).to_pylist()]
    return sorted((row["offset"], row["value"], row["edited"]) for row in rows)


@pytest.fixture
def folder(file):
    return file.parent / "ledger" / "files"


@pytest.mark.usefixtures("letters")
def test_letters_are_exported_edited_and_taken_back_with_their_originals_beside(
    file, folder, catalog, tmp_path, capsys
):
    target = tmp_path / "letters.ndjson"
    told = run_json(capsys, "dead-letters", "export", str(file), "--output", str(target))
    assert told == {"file": str(target), "letters": 4}
    assert (target.stat().st_mode & 0o777) == 0o600
    text = target.read_text()
    assert len(text.splitlines()) == 4
    target.write_text(text.replace('"no json"', '"{}"').replace('"value": null', '"value": "[]"'))
    capsys.readouterr()
    told = run_json(capsys, "dead-letters", "import", str(target), str(file))
    assert told == {"request": 1, "edited": 2, "unchanged": 2}
    assert edits_of(catalog, folder) == [(3, b"no json", b"{}"), (4, None, b"[]")]
    (request,) = open_requests(catalog)
    assert (request.kind, request.arguments["letters"]) == (RequestKind.EDIT_DEAD_LETTERS, 2)
    (edits,) = list_dead_letter_files(catalog, kind=DeadLetterKind.EDIT)
    assert edits.reasons == {"letters-2": 2}


@pytest.mark.usefixtures("letters")
def test_an_export_never_overwrites_a_file_and_goes_to_standard_output_otherwise(file, tmp_path, capsys):
    target = tmp_path / "letters.ndjson"
    target.write_text("edited by hand")
    assert run_command(["dead-letters", "export", str(file), "--output", str(target)]) == 2
    assert target.read_text() == "edited by hand"
    capsys.readouterr()
    assert run_command(["dead-letters", "export", str(file), "--reason", "not_json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["value"] == "no json"


@pytest.mark.usefixtures("letters")
def test_an_edit_of_what_is_no_dead_letter_changes_nothing(file, folder, catalog, tmp_path, capsys):
    target = tmp_path / "letters.ndjson"
    lines = [{"topic": "events", "partition": 0, "offset": offset, "value": "{}"} for offset in (3, 99)]
    target.write_text("\n".join(json.dumps(line) for line in lines))
    assert run_command(["dead-letters", "import", str(target), str(file)]) == 2
    assert "events/0/99" in capsys.readouterr().err
    assert open_requests(catalog) == ()
    assert not list((folder / "events" / "edits").glob("*"))


@pytest.mark.usefixtures("letters")
def test_one_letter_is_edited_by_hand_or_from_a_file(file, folder, catalog, tmp_path, capsys, monkeypatch):
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf \'%s\\n\' "$(cat "$1") better" > "$1"\n')
    editor.chmod(0o700)
    monkeypatch.setenv("EDITOR", str(editor))
    assert run_command(["dead-letters", "edit", "events/0/3", str(file)]) == 0
    value = tmp_path / "value"
    value.write_bytes(b"\x00new")
    command = ["dead-letters", "edit", "events/0/1", str(file), "--value-file", str(value)]
    assert run_command(command) == 0
    assert edits_of(catalog, folder) == [
        (1, b"\xff\x1b[31m", b"\x00new"),
        (3, b"no json", b"no json better"),
    ]
    assert [request.request for request in open_requests(catalog)] == [1, 2]
    capsys.readouterr()
    told = run_json(capsys, "dead-letters", "show", "events/0/1", str(file), "--history")
    (edited,) = told["history"]
    assert told["value_text"] == edited["value_text"] == "\\xff\x1b[31m"
    assert edited["edited_text"] == "\x00new"
    assert run_command(["dead-letters", "show", "events/0/1", str(file), "--history"]) == 0
    assert "edited:" in capsys.readouterr().out


@pytest.mark.usefixtures("letters")
def test_a_letter_that_was_not_changed_is_no_edit(file, catalog, capsys, monkeypatch):
    monkeypatch.setenv("EDITOR", "true")
    assert run_command(["dead-letters", "edit", "events/0/3", str(file)]) == 2
    assert "nothing was edited" in capsys.readouterr().err
    monkeypatch.setenv("EDITOR", "false")
    assert run_command(["dead-letters", "edit", "events/0/3", str(file)]) == 2
    monkeypatch.delenv("EDITOR")
    monkeypatch.delenv("VISUAL", raising=False)
    assert run_command(["dead-letters", "edit", "events/0/3", str(file)]) == 2
    assert open_requests(catalog) == ()


@pytest.mark.usefixtures("letters")
def test_letters_do_not_go_back_to_the_topic_they_came_from(file, capsys):
    assert run_command(["dead-letters", "export", str(file), "--to", "events"]) == 2
    assert "for ever" in capsys.readouterr().err


def test_nothing_to_replay_leaves_no_request(file, catalog, capsys):
    assert run_command(["dead-letters", "replay", str(file)]) == 2
    assert "no dead letters" in capsys.readouterr().err
    assert open_requests(catalog) == ()


def test_no_letters_are_told_as_such(file, catalog, capsys):
    assert run_command(["dead-letters", "list", str(file)]) == 0
    assert capsys.readouterr().out == "no dead letters\n"
