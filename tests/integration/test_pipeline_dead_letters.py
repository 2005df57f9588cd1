"""Dead letters: every kind of record that cannot become a row is kept with its bytes, and tried again."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from live_pipeline import LivePipeline, encode, make_event, note_of, wait_until
from oncehouse.cli.app import run_command
from oncehouse.errors import PoisonError
from oncehouse.ledger.catalog import epochs, requests
from oncehouse.ledger.models import EpochKind, RequestKind
from oncehouse.pipeline.ingest import epoch as ingest
from oncehouse.pipeline.ingest.epoch import read_dataframe
from oncehouse.pipeline.ingest.part_files import read_rows
from oncehouse.pipeline.requests.dead_letter_replay import read_dead_letters
from oncehouse.pipeline.stages import kafka_stream

GOOD = encode(make_event(1))
BAD = {
    "not_json": b'{"project": ',
    "not_an_object": b"[1, 2]",
    "several_objects": GOOD + GOOD,
    "empty": b"",
    "bad_utf8": b'{"project": "\xff"}',
    "wrong_type": encode(make_event(2), product_id="many"),
    "out_of_range": encode(make_event(3), product_id=-1),
    "missing_field": b'{"project": "shop", "event_type": "buy", "note": "x"}',
    "duplicate_key": GOOD[:-1] + b', "note": "again"}',
    "too_big": encode(make_event(4), "x" * 3000),
    "too_deep": GOOD[:-1] + b', "deep": ' + b"[" * 20 + b"]" * 20 + b"}",
}


def letters(live_pipeline: LivePipeline) -> list[dict]:
    files = [found.file for found in epochs.list_dead_letter_files(live_pipeline.catalog)]
    return read_dead_letters(live_pipeline.store, files).to_pylist()


def forget_note(live_pipeline: LivePipeline) -> None:
    """Let the note be absent: what was missing it fits now."""
    live_pipeline.document["source"]["fields"]["note"] = "Nullable(String)"
    live_pipeline.client.command(f"ALTER TABLE {live_pipeline.table} MODIFY COLUMN note Nullable(String)")


def without_note(number: int) -> bytes:
    project, kind, product_id = make_event(number)
    return f'{{"project": "{project}", "event_type": "{kind}", "product_id": {product_id}}}'.encode()


def send_poison(make_pipeline) -> LivePipeline:
    live_pipeline: LivePipeline = make_pipeline(
        partitions=2, source={"max_message_bytes": 2000, "max_depth": 8}
    )
    live_pipeline.send(make_event(number) for number in range(10, 20))
    live_pipeline.send_raw(list(BAD.values()), partition=1)
    live_pipeline.send((make_event(number) for number in range(20, 30)), partition=1)
    return live_pipeline


@pytest.mark.scenario("poison becomes letters")
def test_every_kind_of_bad_record_is_kept_with_reason_position_and_bytes(make_pipeline):
    live_pipeline = send_poison(make_pipeline)
    live_pipeline.run()
    found = {row["reason"]: row for row in letters(live_pipeline)}
    assert set(found) == set(BAD)
    for offset, (reason, value) in enumerate(BAD.items()):
        row = found[reason]
        assert (row["topic"], row["partition"], row["offset"]) == (live_pipeline.topic, 1, offset)
        assert row["value"] == value
        assert row["detail"]
    assert live_pipeline.counts().dead_letter == len(BAD)
    live_pipeline.assert_exact()


@pytest.mark.long
@pytest.mark.defect("poison becomes letters")
def test_letters_that_are_dropped_silently_are_noticed(make_pipeline, monkeypatch):
    """What cannot be decoded is as if it had never been read."""

    def read_what_decodes(records, plan):
        return [
            replace(task, read=task.read - sum(found.rows for found in task.letters), letters=())
            for task in read_dataframe(records, plan)
        ]

    monkeypatch.setattr(kafka_stream, "read_dataframe", read_what_decodes)
    live_pipeline = send_poison(make_pipeline)
    live_pipeline.run()
    with pytest.raises(AssertionError, match=r"31 records were sent, .*read=20"):
        live_pipeline.assert_exact()


@pytest.mark.long
@pytest.mark.scenario("poison becomes letters")
@pytest.mark.parametrize(("limit", "reason"), [("1MB", "too_big"), ("32MB", "missing_field")])
def test_a_record_of_a_million_fields_costs_only_itself(make_pipeline, kafka, kafka_admin, limit, reason):
    live_pipeline = make_pipeline(source={"max_message_bytes": limit})
    most_bytes = "33554432"
    wider = ConfigResource(
        ConfigResource.Type.TOPIC,
        live_pipeline.topic,
        incremental_configs=[
            ConfigEntry("max.message.bytes", most_bytes, incremental_operation=AlterConfigOpType.SET)
        ],
    )
    kafka_admin.incremental_alter_configs([wider])[wider].result(timeout=30)
    live_pipeline.send(make_event(number) for number in range(10))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "message.max.bytes": most_bytes})
    producer.produce(
        live_pipeline.topic, b"{" + b",".join(b'"f%d":%d' % (n, n) for n in range(1_000_000)) + b"}"
    )
    assert producer.flush(60) == 0
    live_pipeline.produced += 1
    live_pipeline.send(make_event(number) for number in range(10, 20))
    live_pipeline.run()
    (letter,) = letters(live_pipeline)
    assert (letter["reason"], letter["offset"]) == (reason, 10)
    live_pipeline.assert_exact()


def test_letters_become_rows_once_the_fields_fit_them(live_pipeline):
    live_pipeline.send(make_event(number) for number in range(10))
    live_pipeline.send_raw([without_note(number) for number in range(100, 105)])
    live_pipeline.run()
    assert live_pipeline.counts().dead_letter == 5
    forget_note(live_pipeline)
    live_pipeline.expected |= {make_event(number): None for number in range(100, 105)}
    result = live_pipeline.request(RequestKind.REPLAY_DEAD_LETTERS)
    assert "new 5" in result
    assert not letters(live_pipeline)
    live_pipeline.assert_exact()


def test_a_letter_whose_event_has_arrived_meanwhile_is_a_duplicate(live_pipeline):
    live_pipeline.send_raw([without_note(7), without_note(8)])
    live_pipeline.run()
    live_pipeline.send([make_event(7)])
    live_pipeline.run()
    forget_note(live_pipeline)
    live_pipeline.expected[make_event(8)] = None
    live_pipeline.request(RequestKind.REPLAY_DEAD_LETTERS)
    replayed = live_pipeline.counts(EpochKind.REPLAY)
    assert (replayed.new, replayed.duplicate, replayed.dead_letter) == (1, 1, 0)
    live_pipeline.assert_exact()


def test_letters_that_were_not_asked_for_or_fail_again_stay_letters(live_pipeline):
    live_pipeline.send_raw([b"{", without_note(1), without_note(2), b"["])
    live_pipeline.run()
    forget_note(live_pipeline)
    live_pipeline.expected[make_event(2)] = None
    live_pipeline.request(RequestKind.REPLAY_DEAD_LETTERS, positions=[[live_pipeline.topic, 0, 2, 3]])
    assert sorted(row["offset"] for row in letters(live_pipeline)) == [0, 1, 3]
    live_pipeline.assert_exact()
    live_pipeline.expected[make_event(1)] = None
    live_pipeline.request(RequestKind.REPLAY_DEAD_LETTERS, reason="missing_field")
    assert sorted((row["offset"], row["value"]) for row in letters(live_pipeline)) == [(0, b"{"), (3, b"[")]
    live_pipeline.assert_exact()


def test_a_replay_without_letters_says_so(live_pipeline):
    live_pipeline.send([make_event(1)])
    live_pipeline.run()
    assert "no dead letters" in live_pipeline.request(RequestKind.REPLAY_DEAD_LETTERS)


def run_cli(live_pipeline: LivePipeline, capsys, *arguments: str) -> dict:
    live_pipeline.command()  # writes the pipeline file
    capsys.readouterr()
    assert (
        run_command(["dead-letters", *arguments, str(live_pipeline.folder / "pipeline.yaml"), "--json"]) == 0
    )
    return json.loads(capsys.readouterr().out)


def test_edited_letters_keep_their_position_and_what_arrived_meanwhile_is_a_duplicate(
    live_pipeline, capsys, tmp_path
):
    live_pipeline.send_raw([b"{", without_note(7), b"[", b"\xff"], partition=1)
    live_pipeline.run()
    live_pipeline.send([make_event(7)])
    live_pipeline.run()
    exported = tmp_path / "letters.ndjson"
    assert run_cli(live_pipeline, capsys, "export", "--output", str(exported))["letters"] == 4
    lines = [json.loads(line) for line in exported.read_text().splitlines()]
    lines[0]["value"] = encode(make_event(50)).decode()
    lines[1]["value"] = encode(make_event(7)).decode()
    lines[3] = {**lines[3], "value_base64": "e30="}
    exported.write_text("\n".join(json.dumps(line) for line in lines))
    assert run_cli(live_pipeline, capsys, "import", str(exported)) == {
        "request": 1,
        "edited": 3,
        "unchanged": 1,
    }
    live_pipeline.expected[make_event(50)] = note_of(make_event(50))
    live_pipeline.run()
    replayed = live_pipeline.counts(EpochKind.REPLAY)
    assert (replayed.new, replayed.duplicate, replayed.dead_letter) == (1, 1, 2)
    left = {row["offset"]: (row["value"], row["reason"]) for row in letters(live_pipeline)}
    assert left == {2: (b"[", "not_json"), 3: (b"{}", "missing_field")}
    raw = [
        row
        for epoch, _, found in epochs.list_key_files(live_pipeline.catalog)
        if epoch == 3
        for row in read_rows(live_pipeline.store, found.raw).to_pylist()
    ]
    assert [(row["partition"], row["offset"]) for row in raw] == [(1, 0), (1, 1)]
    live_pipeline.assert_exact()
    told = run_cli(live_pipeline, capsys, "show", f"{live_pipeline.topic}/1/3", "--history")
    (edit,) = told["history"]
    assert [told["value_text"], edit["value_text"], edit["edited_text"]] == ["{}", "\\xff", "{}"]
    (edit,) = run_cli(live_pipeline, capsys, "show", f"{live_pipeline.topic}/1/0", "--history")["history"]
    assert edit["value_text"] == "{", "the original of a letter that has become a row"


@pytest.mark.long
def test_letters_are_sent_to_a_topic_once_with_their_origin_in_headers(live_pipeline, topic, kafka, capsys):
    target = topic(partitions=2)
    live_pipeline.send_raw([b"{", b"", b"["])
    live_pipeline.run()
    assert run_cli(live_pipeline, capsys, "export", "--to", target) == {
        "topic": target,
        "sent": 3,
        "known": 0,
    }
    assert run_cli(live_pipeline, capsys, "export", "--to", target) == {
        "topic": target,
        "sent": 0,
        "known": 3,
    }
    live_pipeline.send_raw([b"]"])
    live_pipeline.run()
    assert run_cli(live_pipeline, capsys, "export", "--to", target) == {
        "topic": target,
        "sent": 1,
        "known": 3,
    }
    sent = read_topic(kafka, target, 4)
    assert sorted(message.value() for message in sent) == [b"", b"[", b"]", b"{"]
    first = next(message for message in sent if message.value() == b"{")
    headers = dict(first.headers())
    assert headers["oncehouse-topic"] == live_pipeline.topic.encode()
    assert (headers["oncehouse-offset"], headers["oncehouse-reason"]) == (b"0", b"not_json")
    assert headers["oncehouse-detail"]
    assert letters(live_pipeline), "an export takes nothing away"
    live_pipeline.assert_settled()


def read_topic(kafka, name: str, number: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "test", "log_level": 0})
    consumer.assign([TopicPartition(name, partition, OFFSET_BEGINNING) for partition in range(2)])
    found: list[Message] = []
    wait_until(
        lambda: found.extend(consumer.consume(10, timeout=0.5)) or len(found) >= number,
        f"{number} messages in {name}",
    )
    consumer.close()
    return found


def test_a_request_that_is_refused_is_told_by_the_run_that_refuses_it(live_pipeline):
    live_pipeline.send([make_event(1)])
    live_pipeline.run()
    requests.add_request(live_pipeline.catalog, RequestKind.REFILL_TABLE, {"table": "no.such_table"})
    (refused,) = live_pipeline.run().refused
    assert "no.such_table" in refused.result
    assert live_pipeline.run().refused == ()


def stop_at_poison(make_pipeline) -> LivePipeline:
    live_pipeline: LivePipeline = make_pipeline(dead_letters={"max_share": 0.5, "min_records": 10})
    live_pipeline.send_raw([b"{"] * 20)
    live_pipeline.send(make_event(number) for number in range(5))
    with suppress(PoisonError):
        live_pipeline.run()
    settled = (
        live_pipeline.counts().read,
        epochs.read_positions(live_pipeline.catalog),
        letters(live_pipeline),
    )
    assert settled == (0, {}, []), "a stream of poison was settled"
    return live_pipeline


@pytest.mark.scenario("poison above the share")
def test_a_stream_of_poison_stops_the_pipeline_and_settles_nothing(make_pipeline):
    live_pipeline = stop_at_poison(make_pipeline)
    with pytest.raises(PoisonError, match="20 of 25 records"):
        live_pipeline.run()
    live_pipeline.document["dead_letters"]["max_share"] = None
    live_pipeline.run()
    assert len(letters(live_pipeline)) == 20
    live_pipeline.assert_exact()


@pytest.mark.long
@pytest.mark.defect("poison above the share")
def test_a_share_that_is_not_looked_at_is_noticed(make_pipeline, monkeypatch):
    monkeypatch.setattr(ingest, "require_few", lambda *_: None)
    with pytest.raises(AssertionError, match="a stream of poison was settled"):
        stop_at_poison(make_pipeline)


def test_few_bad_records_do_not_stop_the_pipeline(make_pipeline):
    live_pipeline = make_pipeline(dead_letters={"max_share": 0.1, "min_records": 10})
    live_pipeline.send_raw([b"{"] * 9)
    live_pipeline.run()
    assert live_pipeline.counts().dead_letter == 9
