"""How a running relay and an outbox look on the screen."""

import json
import sys

import pytest

from oncehouse.cli.messaging.outbox_relay import RelayView, format_progress
from oncehouse.cli.messaging.outbox_status import format_age, list_facts
from oncehouse.cli.output import decode_text
from oncehouse.messaging.outbox.relay.progress import RelayProgress
from oncehouse.messaging.outbox.status import OutboxStatus, RelayStatus

BUSY = RelayProgress(sent=12_000, parked=1, buckets=32, relays=2, rows_per_second=4_000.4)


def make_status(**more: object) -> OutboxStatus:
    empty = {
        "table": "outbox",
        "waiting": 0,
        "oldest_seconds": None,
        "failing": 0,
        "attempts": 0,
        "last_error": None,
        "parked": 0,
        "behind": 0,
        "sent_kept": 0,
        "relays": (RelayStatus(holder="a", buckets=64, asleep=False, live=True),),
        "free_buckets": 0,
        "parked_messages": (),
    }
    return OutboxStatus(**empty | more)


def test_a_line_tells_what_was_done_and_what_failed_last():
    assert format_progress(BUSY) == "sent 12,000 (4,000/s), parked 1, buckets 32, relays 2"
    failed = RelayProgress(failures=2, last_error="broker away")
    assert format_progress(failed).endswith("failures 2, the last: broker away")


@pytest.mark.parametrize("as_json", [False, True])
def test_lines_come_now_and_then_and_the_end_always(capsys, as_json):
    now = [0.0]
    with RelayView(table="outbox", as_json=as_json, clock=lambda: now[0]) as view:
        view(BUSY)
        view(BUSY)
        now[0] = 6.0
        view(BUSY)
        view.say("stopping")
        view.end(BUSY)
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert len(lines) == 3
    assert told.err == "stopping\n"
    if as_json:
        assert [json.loads(line)["event"] for line in lines] == ["progress", "progress", "end"]
    else:
        assert lines[0] == f"outbox: {format_progress(BUSY)}"


def test_on_a_terminal_one_line_is_kept_up_to_date(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with RelayView(table="outbox", as_json=False) as view:
        view(RelayProgress())
        view.end(BUSY)
    assert "sent 12,000" in capsys.readouterr().out


def test_facts_name_what_a_person_has_to_look_at():
    assert list_facts(make_status())["oldest"] is None
    troubled = list_facts(make_status(failing=1, attempts=3, last_error="away", sent_kept=9, free_buckets=5))
    assert troubled["failing"] == "3 attempts so far, the last: away"
    assert (troubled["sent, kept"], troubled["buckets without a relay"]) == (9, 5)
    assert "outbox relay" in list_facts(make_status(relays=()))["relays"]


def test_ages_and_keys_are_short_and_readable():
    assert [format_age(s) for s in (None, -1, 5, 300, 10_000, 900_000)] == [
        None,
        "0.0s",
        "5.0s",
        "5m",
        "2h 46m",
        "10d 10h",
    ]
    assert [decode_text(key) for key in (None, b"a", b"\xff")] == [None, "a", "\\xff"]
