"""The question for leader epochs, without a broker that answers it."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from oncehouse.common import leader_epochs
from oncehouse.common.leader_epochs import EpochEnd, Unanswered, ask_epoch_ends, receive_epoch_ends


def ask(**options: str):
    settings = {"bootstrap.servers": "127.0.0.1:9", "log_level": 0} | options
    return ask_epoch_ends(settings, {("events", 0): 3}, group="g", timeout_seconds=0.1)


def test_a_broker_that_does_not_answer_is_not_waited_for():
    with pytest.raises(KafkaException, match="_TIMED_OUT"):
        ask()


def test_bounds_for_fetching_that_the_client_would_refuse_do_not_matter():
    with pytest.raises(KafkaException, match="_TIMED_OUT"):
        ask(
            **{
                "fetch.max.bytes": "4096",
                "max.partition.fetch.bytes": "4096",
                "receive.message.max.bytes": "9000",
            }
        )


def test_nothing_is_asked_for_no_partitions():
    assert ask_epoch_ends({}, {}, group="g", timeout_seconds=0.0) == {}


class Told:
    """A client that says these things one after the other."""

    def __init__(self, *messages: Message) -> None:
        self._messages = list(messages)
        self.settings: list[dict[str, object]] = []
        self.closed = 0

    def __call__(self, settings: dict[str, object]) -> Told:
        self.settings.append(settings)
        return self

    def assign(self, partitions: object) -> None:
        pass

    def poll(self, timeout: float) -> Message | None:
        return self._messages.pop(0) if self._messages else None

    def close(self) -> None:
        self.closed += 1


def say(code: int, words: str = "", *, topic: str | None = None, partition: int = -1) -> Message:
    return Message(topic=topic, partition=partition, error=KafkaError(code, words))


def answer(partition: int, *, end: int, epoch: int) -> Message:
    words = f"Partition log truncation: broker end offset is {end} (offset leader epoch {epoch})"
    return say(KafkaError._AUTO_OFFSET_RESET, words, topic="events", partition=partition)


def listen(monkeypatch: pytest.MonkeyPatch, *messages: Message, partitions: int = 1) -> tuple[Told, object]:
    told = Told(*messages)
    monkeypatch.setattr(leader_epochs, "Consumer", told)
    asked = {("events", number): 3 for number in range(partitions)}
    try:
        return told, ask_epoch_ends({}, asked, group="the-users-own", timeout_seconds=0.1)
    except Unanswered as error:
        return told, error


def test_the_group_is_one_that_the_caller_may_read(monkeypatch):
    told, _ = listen(monkeypatch, answer(0, end=40, epoch=3))
    assert told.settings[0]["group.id"] == "the-users-own"


@pytest.mark.parametrize(
    "refusal",
    [
        say(KafkaError.GROUP_AUTHORIZATION_FAILED, "FindCoordinator response error"),
        say(KafkaError._ALL_BROKERS_DOWN),
        say(KafkaError.TOPIC_AUTHORIZATION_FAILED, topic="another"),
    ],
)
def test_an_error_that_names_none_of_the_partitions_is_no_answer_for_them(monkeypatch, refusal):
    told, found = listen(monkeypatch, refusal, answer(0, end=40, epoch=3))
    assert found == {("events", 0): EpochEnd(end=40, epoch=3)}
    assert told.closed == 1


def test_if_no_partition_is_answered_for_after_such_an_error_the_time_is_up(monkeypatch):
    _, error = listen(monkeypatch, say(KafkaError.GROUP_AUTHORIZATION_FAILED))
    assert isinstance(error, Unanswered)
    assert error.args[0].code() == KafkaError._TIMED_OUT
    assert error.place == ("events", 0)


@pytest.mark.parametrize("partition", [1, -1])
def test_an_error_of_a_partition_or_its_topic_is_raised_with_its_place(monkeypatch, partition):
    refusal = say(KafkaError.TOPIC_AUTHORIZATION_FAILED, topic="events", partition=partition)
    told, error = listen(monkeypatch, answer(0, end=40, epoch=3), refusal, partitions=2)
    assert isinstance(error, Unanswered)
    assert error.place == ("events", 1)
    assert error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert told.closed == 1


def test_a_partition_for_which_the_client_asked_for_the_offset_instead_is_asked_again(monkeypatch):
    instead = say(KafkaError._AUTO_OFFSET_RESET, "no offset", topic="events", partition=0)
    told, found = listen(monkeypatch, instead, answer(0, end=40, epoch=3))
    assert found == {("events", 0): EpochEnd(end=40, epoch=3)}
    assert told.closed == 2


def test_the_answers_of_healthy_partitions_come_before_the_time_is_up_for_others(monkeypatch):
    monkeypatch.setattr(leader_epochs, "Consumer", Told(answer(1, end=40, epoch=3)))
    asked = {("events", 0): 3, ("events", 1): 3}
    stopped: list[bool] = []
    heard = receive_epoch_ends({}, asked, group="g", timeout_seconds=3600.0, stop=lambda: bool(stopped))
    assert next(heard) == (("events", 1), EpochEnd(end=40, epoch=3))
    stopped.append(True)
    assert list(heard) == []
