"""The small parts of a relay, without servers: pace, throughput, the order check of the tests, one flight."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from live_pipeline import wait_until
from oncehouse.common.backoff import Backoff
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.message import MESSAGE_ID
from oncehouse.messaging.outbox.relay.delivery_batch import DeliveryBatch
from oncehouse.messaging.outbox.relay.progress import Throughput
from oncehouse.messaging.outbox.relay.relay import IdlePolling
from oncehouse.messaging.outbox.relay.sender import KafkaSender, TopicCache, producer_settings
from oncehouse.messaging.outbox.relay.types import ClaimedRow, RefusedRow, SendResult
from oncehouse.messaging.outbox.relay.worker import RelayRound, RelayWorker, RoundLimits, find_heads
from outbox_examples import check_order


def make_row(
    seq: int, key: bytes | None = b"k", *, value: bytes = b"v", topic: str = "t", headers=None
) -> ClaimedRow:
    return ClaimedRow(seq, seq % 4, f"id {seq}", topic, key, value, headers, None)


class FakeProducer:
    """Takes messages; values name what happens to them."""

    def __init__(self) -> None:
        self.accepted: list[tuple[object, ...]] = []
        self.full = 0

    def produce(self, topic, value, key, *, headers, on_delivery) -> None:
        if value == b"huge":
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        if value == b"fatal":
            raise KafkaException(KafkaError(KafkaError._FATAL))
        if self.full:
            raise BufferError
        self.accepted.append((topic, key, value, headers, on_delivery))

    def poll(self, seconds: float) -> None:
        self.full -= 1

    def report(self, errors: dict[bytes, int]) -> None:
        for *_, value, _, on_delivery in self.accepted:
            on_delivery(KafkaError(errors[value]) if value in errors else None, None)


def test_an_idle_relay_looks_ever_more_seldom_up_to_a_bound():
    pace = IdlePolling(shortest_seconds=1, longest_seconds=5, wait_seconds=1)
    waits = []
    for _ in range(4):
        pace = pace.after(found=False)
        waits.append(pace.wait_seconds)
    assert waits == [2, 4, 5, 5]
    assert pace.after(found=True).wait_seconds == 1


def test_throughput_counts_all_and_rates_the_last_seconds():
    now = [0.0]
    throughput = Throughput(monotonic=lambda: now[0])
    throughput.add(RelayRound(claimed=10, sent=10))
    now[0] = 2.0
    assert throughput.progress(buckets=1, relays=1).rows_per_second == 5
    throughput.add(RelayRound(claimed=2, sent=0, parked=2, error="away"))
    throughput.add(RelayRound(claimed=1, sent=1))
    now[0] = 6.0
    progress = throughput.progress(buckets=3, relays=2)
    assert (progress.sent, progress.parked, progress.failures, progress.last_error) == (11, 2, 1, "away")
    assert progress.rows_per_second == pytest.approx(0.2)
    assert (progress.buckets, progress.relays) == (3, 2)


def test_the_order_check_takes_repeats_from_any_place_on():
    assert check_order([0, 1, 2, 1, 2, 3], 4) is None
    assert check_order([0, 0, 1, 0, 1, 2], 3) is None


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ([0, 2, 1], "2 came after 0"),
        ([0, 1, 2, 0, 2], "2 came after 0"),
        ([0, 1], "1 are missing, the first is 2"),
        ([0, 1, 2, 3], "1 were never committed"),
    ],
)
def test_the_order_check_finds_what_is_lost_strange_or_overtaken(numbers, why):
    assert why in check_order(numbers, 3)


@given(st.lists(st.integers(0, 5), max_size=12))
def test_first_occurrences_are_in_order_wherever_the_check_is_content(numbers):
    if check_order(numbers, 6) is None:
        assert list(dict.fromkeys(numbers)) == list(range(6))


def test_a_flight_sends_all_with_their_ids_and_tells_what_was_acknowledged():
    producer, batch = FakeProducer(), DeliveryBatch(positions=False)
    rows = [make_row(1, headers='[["a","x"]]'), make_row(2, None)]
    producer.full = 2
    assert batch.produce(producer, rows, {}) == []
    assert [accepted[3] for accepted in producer.accepted] == [
        [("a", b"x"), (MESSAGE_ID, "id 1")],
        [(MESSAGE_ID, "id 2")],
    ]
    producer.report({})
    assert batch.acknowledged == [1, 2]
    assert batch.is_complete


def test_what_follows_a_row_that_cannot_be_sent_stays_with_its_key():
    producer, batch = FakeProducer(), DeliveryBatch(positions=False)
    rows = [
        make_row(1, b"a", value=b"huge"),
        make_row(2, b"a"),
        make_row(3, b"b"),
        make_row(4, None, topic="gone"),
        make_row(5, None),
        make_row(6, b"c", headers="{"),
        make_row(7, b"d", headers="[" * 100_000),
    ]
    refused = batch.produce(producer, rows, {"gone": "no such topic"})
    assert [(refusal.row.seq, bool(refusal.error)) for refusal in refused] == [
        (1, True),
        (4, True),
        (6, True),
        (7, True),
    ]
    assert [accepted[1] for accepted in producer.accepted] == [b"b", None]


def test_a_producer_that_is_at_its_end_takes_nothing_more():
    producer, batch = FakeProducer(), DeliveryBatch(positions=False)
    assert batch.produce(producer, [make_row(1), make_row(2, value=b"fatal"), make_row(3)], {}) == []
    assert len(producer.accepted) == 1
    assert batch.blocked
    producer.report({})
    assert not batch.is_complete


def test_a_producer_that_stays_full_is_not_waited_for_beyond_the_time():
    asked = iter([True, True, False])
    producer, batch = FakeProducer(), DeliveryBatch(positions=False, may_wait=lambda: next(asked))
    producer.full = 10
    assert batch.produce(producer, [make_row(1), make_row(2)], {}) == []
    assert not producer.accepted
    assert "full" in (batch.blocked or "")
    assert not batch.is_complete


def test_suspects_are_the_refused_with_the_rest_of_their_keys():
    producer, batch = FakeProducer(), DeliveryBatch(positions=False)
    rows = [
        make_row(1, b"a", value=b"sent"),
        make_row(2, b"a", value=b"bad"),
        make_row(3, b"b", value=b"purged"),
        make_row(4, b"a", value=b"purged"),
        make_row(5, None, value=b"bad"),
        make_row(6, None, value=b"purged"),
    ]
    batch.produce(producer, rows, {})
    producer.report({b"bad": KafkaError.MSG_SIZE_TOO_LARGE, b"purged": KafkaError._PURGE_QUEUE})
    assert [[row.seq for row in queue] for queue in batch.find_suspects(rows)] == [[2, 4], [5]]
    assert not batch.is_complete


def test_a_failure_is_written_down_at_the_oldest_row_of_each_bucket():
    rows = [make_row(number) for number in range(1, 9)]
    sent = SendResult(acknowledged=[1], refused=[RefusedRow(rows[1], "no")])
    assert find_heads(rows, sent) == [3, 4, 5, 6]


class OneBusyKey:
    """A store in which a single bucket has rows, and more of them than a round takes of it."""

    def __init__(self, rows: int) -> None:
        self.left = rows

    def claim(self, tokens: object, *, rows: int, size_bytes: int) -> list[ClaimedRow]:
        accepted = min(rows, self.left)
        self.left -= accepted
        return [make_row(number) for number in range(accepted)]

    def park_behind(self, tokens: object, rows: object) -> int:
        return 0

    park = park_behind

    def settle(self, tokens: object, sent: SendResult) -> int:
        return len(sent.acknowledged)


class GladSender:
    def send(self, rows: list[ClaimedRow], *, give_up_at: float) -> SendResult:
        return SendResult(acknowledged=[row.seq for row in rows])

    def close(self) -> None:
        pass


def test_a_backlog_of_one_key_is_no_trickle_to_linger_over():
    store, told = OneBusyKey(rows=65), []
    worker = RelayWorker(
        store=store,
        sender=GladSender(),
        limits=RoundLimits(rows=400, linger_seconds=3600.0),
        backoff=Backoff(base_seconds=0, longest_seconds=0),
        may_continue=lambda: True,
        on_round=told.append,
    )
    worker.assign(dict.fromkeys(range(20), 1))
    worker.wake()
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        wait_until(lambda: store.left == 0, "an empty store")
    finally:
        worker.stop()
        thread.join()
    assert [done.claimed for done in told] == [20, 20, 20, 5]


@pytest.mark.parametrize("option", ["acks", "partitioner", "enable.idempotence", "message.timeout.ms"])
def test_options_that_would_break_the_promises_are_refused(option):
    with pytest.raises(ConfigurationError, match=option):
        producer_settings("localhost:9092", {option: "1"})


@pytest.mark.parametrize("option", ["no.such.option", "security.protocol"])
def test_options_that_the_client_refuses_are_told_before_the_first_message(option):
    with pytest.raises(ConfigurationError, match=f"kafka.options.*{option}"):
        KafkaSender("localhost:9092", {option: "so so"})


class FakeMetadata:
    def __init__(self, answers: list[int | None]) -> None:
        self.answers = answers
        self.asked = 0

    def list_topics(self, topic: str, timeout: float):
        code = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        error = None if code is None else KafkaError(code)
        return type("Metadata", (), {"topics": {topic: type("Topic", (), {"error": error})}})


def test_a_topic_is_asked_for_once_and_again_after_a_failure():
    topics, kafka = TopicCache(sleep=lambda _: None), FakeMetadata([None])
    assert topics.find_missing(kafka, ["t"]) == {}
    assert topics.find_missing(kafka, ["t"]) == {}
    assert kafka.asked == 1
    topics.forget()
    topics.find_missing(kafka, ["t"])
    assert kafka.asked == 2


def test_a_topic_that_is_being_made_gets_a_moment_and_a_missing_one_is_remembered_for_a_while():
    now = [0.0]
    topics = TopicCache(monotonic=lambda: now[0], sleep=lambda _: None)
    assert topics.find_missing(FakeMetadata([KafkaError.UNKNOWN_TOPIC_OR_PART, None]), ["made"]) == {}
    missing = FakeMetadata([KafkaError.UNKNOWN_TOPIC_OR_PART])
    assert "create the topic" in topics.find_missing(missing, ["t"])["t"]
    asked = missing.asked
    assert "t" in topics.find_missing(missing, ["t"])
    assert missing.asked == asked
    now[0] = 60.0
    assert topics.find_missing(FakeMetadata([None]), ["t"]) == {}
