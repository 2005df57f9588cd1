"""A range is read once more only where Kafka's log still is the one that it was read from."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from oncehouse.common.leader_epochs import EpochEnd, Unanswered
from oncehouse.config.pipeline import Kafka
from oncehouse.errors import PermanentError, TransientError
from oncehouse.ledger.models import Counts, DeadLetterKind, OffsetRange
from oncehouse.pipeline.ingest.part_files import DEAD_LETTER_SCHEMA, RAW_SCHEMA
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


def require_letters(*, dead: int, waiting: int, reason: str) -> None:
    """Of an epoch that was settled with two dead letters of this reason and three records that wait."""
    table = DEAD_LETTER_SCHEMA.empty_table()
    letters = {DeadLetterKind.DEAD: dead, DeadLetterKind.WAITING: waiting}
    filled = {kind: pa.concat_tables([table, *[null_letter()] * number]) for kind, number in letters.items()}
    state = SimpleNamespace(
        epochs=[SimpleNamespace(epoch=1, counts=Counts(read=5, dead_letter=2, waiting=3))],
        key_files=[],
        dead_letter_files=[SimpleNamespace(epoch=1, reasons={reason: 2})],
    )
    reread = epoch_reread.RereadEpoch(raw=RAW_SCHEMA.empty_table(), dead_letters=filled)
    epoch_reread._require_counts(state, 1, reread, [])


def null_letter() -> pa.Table:
    return pa.table([pa.nulls(1, field.type) for field in DEAD_LETTER_SCHEMA], schema=DEAD_LETTER_SCHEMA)


def test_which_records_of_too_many_schemas_waited_does_not_matter_when_an_epoch_is_read_again():
    require_letters(dead=0, waiting=5, reason="schema_unknown")
    with pytest.raises(PermanentError, match="4 dead letters and waiting records instead of 5"):
        require_letters(dead=0, waiting=4, reason="schema_unknown")
    with pytest.raises(PermanentError, match="0 dead letters instead of 2"):
        require_letters(dead=0, waiting=5, reason="not_json")
