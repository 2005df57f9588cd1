"""A range is read once more only where Kafka's log still is the one that it was read from."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from oncehouse.common.leader_epochs import EpochEnd, Unanswered
from oncehouse.config.pipeline import Kafka
from oncehouse.errors import PermanentError, TransientError
from oncehouse.ledger.models import OffsetRange
from oncehouse.pipeline.repair import epoch_reread
from oncehouse.pipeline.repair.epoch_reread import reread_offsets

HERE = ("t", 0)
KAFKA = Kafka(bootstrap_servers="127.0.0.1:9", topics=["t"])
SPAN = OffsetRange(topic="t", partition=0, start=20, end=40, leader_epoch=3)


class RecordsReadError(Exception):
    """Records are about to be read."""


def read(monkeypatch: pytest.MonkeyPatch, answer: EpochEnd | None, span: OffsetRange = SPAN) -> None:
    def ask(_settings, asked, *, group: str, timeout_seconds: float):
        assert group == "oncehouse-shop"
        if asked and answer is None:
            raise Unanswered(HERE, KafkaError(KafkaError._TIMED_OUT))
        return dict.fromkeys(asked, answer)

    def open_consumer(settings: dict[str, object]):
        assert settings["group.id"] == "oncehouse-shop"
        raise RecordsReadError

    monkeypatch.setattr(epoch_reread, "ask_epoch_ends", ask)
    monkeypatch.setattr(epoch_reread, "Consumer", open_consumer)
    list(reread_offsets(KAFKA, [span], group="oncehouse-shop", headers=False))


@pytest.mark.parametrize(
    "answer", [EpochEnd(epoch=3, end=39), EpochEnd(epoch=2, end=60), EpochEnd(epoch=-1, end=-1)]
)
def test_a_range_whose_log_was_cut_is_refused_before_a_record_is_read(monkeypatch, answer):
    with pytest.raises(
        PermanentError, match=r"Topic t partition 0: .* was cut since offsets 20 to 39 were read"
    ) as raised:
        read(monkeypatch, answer)
    assert "nothing was changed" in str(raised.value)


def test_a_range_whose_log_still_has_it_is_read(monkeypatch):
    with pytest.raises(RecordsReadError):
        read(monkeypatch, EpochEnd(epoch=3, end=40))


def test_a_range_that_was_settled_without_a_leader_epoch_is_read(monkeypatch):
    with pytest.raises(RecordsReadError):
        read(monkeypatch, None, OffsetRange(topic="t", partition=0, start=20, end=40))


def test_a_leader_that_does_not_answer_is_no_proof_of_a_cut(monkeypatch):
    with pytest.raises(TransientError, match="does not give the records reread"):
        read(monkeypatch, None)
