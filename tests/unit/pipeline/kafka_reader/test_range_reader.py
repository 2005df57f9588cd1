"""What a reader of a range does when its leader moves, is slow, or has nothing: with a connection that plays it."""

from __future__ import annotations

import pytest

from kafka_records import Record, encode_batch
from oncehouse.config.pipeline import Kafka
from oncehouse.errors import ConfigurationError, DataLossError, TransientError
from oncehouse.pipeline.kafka_reader import connection, range_reader
from oncehouse.pipeline.kafka_reader.access import KafkaAccess, SourceRange, TopicPlace, make_access
from oncehouse.pipeline.kafka_reader.connection import (
    Connection,
    FetchAnswer,
    LeaderError,
    OffsetGoneError,
    open_connection,
)
from oncehouse.pipeline.kafka_reader.range_reader import read_ranges

PLACE = TopicPlace(topic="events", topic_id="AAAAAAAAAAAAAAAAAAAAAA", partition=0)
ACCESS = KafkaAccess(bootstrap_servers="127.0.0.1:9", patience_seconds=5.0)
NO_RECORDS = FetchAnswer(records=memoryview(b""), aborted=())


def answer(*offsets: int) -> FetchAnswer:
    batch = encode_batch([Record(offset, 1_700_000_000_000, None, b"%d" % offset) for offset in offsets])
    return FetchAnswer(records=memoryview(batch), aborted=())


class PlayedConnection:
    """Gives what it is told for each fetch; time passes by the second in each pause."""

    def __init__(self, *played: FetchAnswer | Exception, throttled: int = 0) -> None:
        self.played = list(played)
        self.asked: list[int] = []
        self.refreshed = 0
        self.throttled = throttled
        self.known = True

    def knows(self, _place: TopicPlace) -> bool:
        return self.known

    def is_throttled(self, _place: TopicPlace) -> bool:
        self.throttled -= 1
        return self.throttled >= 0

    def refresh(self, _topic: str) -> None:
        self.refreshed += 1
        self.known = True

    def send_fetch(self, _place: TopicPlace, offset: int) -> int:
        self.asked.append(offset)
        return offset

    def wait(self, _place: TopicPlace, _sent: int) -> FetchAnswer:
        found = self.played.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def play(monkeypatch):
    """`play(connection, end)`: the offsets that are read from 0 up to `end`."""
    now = [0.0]
    monkeypatch.setattr(range_reader.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(
        range_reader.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds + 0.01)
    )

    def read(played: PlayedConnection, end: int, *, work_seconds: float = 0.0) -> list[int]:
        monkeypatch.setattr(range_reader, "open_connection", lambda _: played)
        found = []
        for block in read_ranges(
            ACCESS, [SourceRange(place=PLACE, source=3, start=0, end=end)], headers=False
        ):
            now[0] += work_seconds
            found += block.column("offset").to_pylist()
        return found

    return read


def test_answers_follow_one_another_and_the_next_one_is_asked_for_ahead(play):
    played = PlayedConnection(answer(0, 1), answer(2), answer(5, 6, 7))
    assert play(played, 7) == [0, 1, 2, 5, 6]
    assert played.asked == [0, 2, 3]
    assert played.refreshed == 0


def test_another_leader_is_asked_for_and_the_same_offset_again(play):
    played = PlayedConnection(answer(0), LeaderError("NotLeaderForPartitionError"), answer(1))
    played.known = False
    assert play(played, 2) == [0, 1]
    assert played.asked == [0, 1, 1]
    assert played.refreshed == 2


def test_a_leader_that_stays_away_is_named_with_the_reason_that_says_something(play):
    played = PlayedConnection(LeaderError("it is on fire"), *[LeaderError("")] * 50)
    with pytest.raises(
        TransientError, match=r"nothing of topic events partition 0 .* for 5 s \(it is on fire\)"
    ):
        play(played, 2)


def test_empty_answers_are_waited_over_but_not_for_ever(play):
    assert play(PlayedConnection(NO_RECORDS, NO_RECORDS, answer(0)), 1) == [0]
    with pytest.raises(TransientError, match="nothing comes at offset 0"):
        play(PlayedConnection(*[NO_RECORDS] * 50), 1)


def test_work_on_blocks_and_pauses_that_a_broker_asks_for_are_no_lack_of_progress(play):
    played = PlayedConnection(answer(0), LeaderError("RequestTimedOutError"), NO_RECORDS, answer(1))
    assert play(played, 2, work_seconds=100) == [0, 1]
    assert play(PlayedConnection(answer(0), throttled=10_000), 1) == [0]


def test_an_offset_is_gone_when_a_leader_that_was_asked_for_says_so(play):
    gone = OffsetGoneError("OffsetOutOfRangeError")
    assert play(PlayedConnection(gone, answer(0)), 1) == [0]
    with pytest.raises(DataLossError, match="no longer has offset 0 of topic events partition 0"):
        play(PlayedConnection(gone, gone), 1)


def test_blocks_are_cut_and_joined_to_the_size_of_sparks(play, monkeypatch):
    monkeypatch.setattr(range_reader, "BLOCK_ROWS", 4)
    monkeypatch.setattr(
        range_reader, "open_connection", lambda _: PlayedConnection(answer(*range(3)), answer(*range(3, 11)))
    )
    span = SourceRange(place=PLACE, source=3, start=0, end=11)
    blocks = list(read_ranges(ACCESS, [span], headers=False))
    assert [block.num_rows for block in blocks] == [4, 4, 3]
    assert [offset for block in blocks for offset in block.column("offset").to_pylist()] == list(range(11))


@pytest.mark.parametrize(("leader", "known"), [(None, False), (-1, False), (0, True), (7, True)])
def test_a_broker_of_the_number_zero_is_a_leader(monkeypatch, leader, known):
    monkeypatch.setattr(Connection, "_leader", lambda *_: leader)
    assert Connection.knows(Connection.__new__(Connection), PLACE) is known


def test_a_forked_process_opens_a_connection_of_its_own(monkeypatch):
    made = []
    monkeypatch.setattr(connection, "Connection", lambda access: made.append(access) or object())
    monkeypatch.setattr(connection, "_connections", {})
    first = open_connection(ACCESS)
    assert open_connection(ACCESS) is first
    monkeypatch.setattr(connection.os, "getpid", lambda: 1)
    assert open_connection(ACCESS) is not first
    assert len(connection._connections) == 1


def read_options(**options: str) -> KafkaAccess:
    given = {name.replace("_", "."): value for name, value in options.items()}
    return make_access(Kafka(bootstrap_servers="127.0.0.1:9", topics=["events"], options=given))


def test_limits_and_names_of_the_options_are_kept_to():
    access = read_options(
        fetch_max_bytes="5000", max_partition_fetch_bytes="4000", fetch_wait_max_ms="7", client_id="shop"
    )
    assert (access.fetch_bytes, access.wait_milliseconds, access.client_id) == (4000, 7, "shop")


@pytest.mark.parametrize("value", ["4MB", "0", "-1", "3000000000", "²"])
def test_a_limit_that_is_no_number_is_refused_by_its_name(value):
    with pytest.raises(
        ConfigurationError, match=r"source\.kafka\.options: fetch\.max\.bytes .* whole number"
    ):
        read_options(fetch_max_bytes=value)


def test_an_option_that_names_other_brokers_is_refused():
    with pytest.raises(
        ConfigurationError, match=r"does not know source\.kafka\.options metadata\.broker\.list"
    ):
        read_options(metadata_broker_list="elsewhere:9092")


def test_a_user_of_scram_may_have_any_name():
    options = {"security_protocol": "SASL_SSL", "sasl_username": "a,b=c", "sasl_password": "x"}
    assert read_options(sasl_mechanism="SCRAM-SHA-512", **options).user == "a=2Cb=3Dc"
    assert read_options(sasl_mechanism="PLAIN", **options).user == "a,b=c"
