"""The outbox table as a relay sees it, on each database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

import pytest
from sqlalchemy import Engine, insert, select, update

from oncehouse.common.database import begin
from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.messaging.bucket_leases import BucketLeases
from oncehouse.messaging.outbox import parked
from oncehouse.messaging.outbox.ids import make_id
from oncehouse.messaging.outbox.parked import ParkedSelection
from oncehouse.messaging.outbox.relay.relay import open_store
from oncehouse.messaging.outbox.relay.types import (
    ClaimedRow,
    RefusedRow,
    RelayStore,
    SendResult,
    SentPosition,
)
from oncehouse.messaging.outbox.status import read_status
from oncehouse.messaging.outbox.tables import BUCKETS, bucket_of
from outbox_examples import TABLES, open_outbox, write

OUTBOX = TABLES.outbox
KEYS = [f"key {number}".encode() for number in range(200)]
SAME_BUCKET = [key for key in KEYS if bucket_of(key, UUID(int=0)) == bucket_of(KEYS[0], UUID(int=0))]


@dataclass
class StoreSetup:
    engine: Engine
    leases: BucketLeases
    store: RelayStore

    def __post_init__(self) -> None:
        self.tokens = self.leases.renew().tokens

    def claim(self, rows: int = 100, size_bytes: int = 1 << 20) -> list[ClaimedRow]:
        return self.store.claim(self.tokens, rows=rows, size_bytes=size_bytes)

    def values(self) -> list[bytes]:
        return [row.value for row in self.claim() if row.behind is None]

    def park(self, *values: bytes) -> None:
        self.store.park(self.tokens, [RefusedRow(row, "no") for row in self.claim() if row.value in values])

    def lose(self) -> None:
        """Another relay takes everything over."""
        leases = TABLES.leases.leases
        with begin(self.engine, whose="test") as connection:
            connection.execute(update(leases).values(holder="another", token=leases.c.token + 1))

    def read(self, *columns: str) -> list[tuple[object, ...]]:
        with self.engine.connect() as connection:
            found = connection.execute(select(*(OUTBOX.c[name] for name in columns)).order_by(OUTBOX.c.seq))
            return [tuple(row) for row in found]


@pytest.fixture(params=[False, True], ids=["deletes", "keeps"])
def keep(request) -> bool:
    return request.param


@pytest.fixture
def setup(catalog_url, keep) -> Iterator[StoreSetup]:
    with open_outbox(catalog_url) as engine:
        leases = BucketLeases(engine, name=TABLES.name, buckets=BUCKETS, holder="me", tables=TABLES.leases)
        store = open_store(engine, TABLES, keep=keep)
        yield StoreSetup(engine=engine, leases=leases, store=store)
        store.close()


deletes_only = pytest.mark.parametrize("keep", [False], indirect=True, ids=["deletes"])
keeps_only = pytest.mark.parametrize("keep", [True], indirect=True, ids=["keeps"])


@deletes_only
def test_claimed_rows_are_whole_and_the_oldest_come_first(setup):
    first = write(setup.engine, [(b"a", b"1"), (None, None), (b"b", b"")], headers='[["h","x"]]')
    rows = setup.claim()
    assert [(row.message_id, row.topic, row.key, row.value, row.headers, row.behind) for row in rows] == [
        (str(first[0]), "orders", b"a", b"1", '[["h","x"]]', None),
        (str(first[1]), "orders", None, None, '[["h","x"]]', None),
        (str(first[2]), "orders", b"b", b"", '[["h","x"]]', None),
    ]
    assert [row.seq for row in rows] == sorted(row.seq for row in rows)
    assert setup.store.find_waiting(range(BUCKETS)) == {row.bucket for row in rows}
    assert setup.claim() == rows, "claiming changes nothing"


@deletes_only
def test_a_claim_is_bounded_in_rows_and_bytes_by_bucket_but_never_empty(setup):
    write(setup.engine, [(SAME_BUCKET[0], b"x" * 100)] * 5 + [(SAME_BUCKET[1], b"y")])
    assert len(setup.claim(rows=2)) == 2
    assert len(setup.claim(size_bytes=1)) == 1
    assert len(setup.claim(size_bytes=250)) == 3


@deletes_only
def test_only_the_buckets_that_are_ours_are_claimed(setup):
    write(setup.engine, [(key, b"v") for key in KEYS])
    some = {bucket: token for bucket, token in setup.tokens.items() if bucket < 5}
    rows = setup.store.claim(some, rows=1000, size_bytes=1 << 20)
    assert {row.bucket for row in rows} == set(range(5))
    setup.lose()
    assert setup.claim() == []
    assert setup.store.claim({}, rows=10, size_bytes=10) == []


def test_only_what_was_acknowledged_is_settled(setup, keep):
    write(setup.engine, [(b"a", b"1"), (b"a", b"2"), (b"b", b"3")])
    rows = setup.claim()
    sent = SendResult(
        acknowledged=[rows[0].seq, rows[2].seq],
        positions=[SentPosition(rows[0].seq, 3, 70), SentPosition(rows[2].seq, 1, 71)],
    )
    assert setup.store.settle(setup.tokens, sent) == 2
    assert setup.values() == [b"2"]
    if keep:
        assert setup.read("sent_partition", "sent_offset") == [(3, 70), (None, None), (1, 71)]
    else:
        assert setup.read("value") == [(b"2",)]


def test_a_relay_that_was_taken_over_changes_nothing(setup):
    write(setup.engine, [(b"a", b"1"), (b"a", b"2")])
    rows = setup.claim()
    setup.lose()
    before = setup.read(*OUTBOX.c.keys())
    sent = SendResult(acknowledged=[rows[0].seq], positions=[SentPosition(rows[0].seq, 0, 0)])
    assert setup.store.settle(setup.tokens, sent) == 0
    assert setup.store.park(setup.tokens, [RefusedRow(rows[0], "no")]) == 0
    assert setup.store.park_behind(setup.tokens, [rows[1]._replace(behind=rows[0].message_id)]) == 0
    setup.store.note_failure(setup.tokens, [rows[0].seq], "no")
    assert setup.read(*OUTBOX.c.keys()) == before


@deletes_only
def test_a_parked_row_holds_back_its_key_alone(setup):
    write(setup.engine, [(SAME_BUCKET[0], b"bad"), (SAME_BUCKET[0], b"later"), (SAME_BUCKET[1], b"other")])
    write(setup.engine, [(SAME_BUCKET[0], b"elsewhere")], topic="bills")
    setup.park(b"bad")
    rows = setup.claim()
    assert {row.value: row.behind is not None for row in rows} == {
        b"later": True,
        b"other": False,
        b"elsewhere": False,
    }
    assert setup.store.park_behind(setup.tokens, rows) == 1
    assert setup.values() == [b"other", b"elsewhere"]
    write(setup.engine, [(SAME_BUCKET[0], b"latest")])
    assert [row.value for row in setup.claim() if row.behind is not None] == [b"latest"]


@deletes_only
def test_rows_without_a_key_have_nothing_to_wait_for(setup):
    write(setup.engine, [(None, b"bad"), (None, b"good")])
    setup.park(b"bad")
    assert setup.values() == [b"good"]


@deletes_only
@pytest.mark.parametrize(("move", "left"), [(parked.retry, [b"bad", b"later"]), (parked.drop, [b"later"])])
def test_a_key_that_is_let_go_comes_back_in_order(setup, move, left):
    ids = write(setup.engine, [(b"a", b"bad"), (b"a", b"later")])
    setup.park(b"bad")
    claimed_before = setup.claim()
    setup.store.park_behind(setup.tokens, claimed_before)
    moved = move(setup.engine, TABLES, ParkedSelection(ids=[ids[0]]))
    assert (moved.messages, moved.freed) == (1, 1)
    assert setup.values() == left
    assert setup.store.park_behind(setup.tokens, claimed_before) == 0, "seen before it was let go"
    assert setup.values() == left


@deletes_only
def test_parked_messages_are_chosen_by_id_by_topic_or_all_together(setup):
    ids = write(setup.engine, [(b"a", b"bad"), (b"b", b"bad")])
    write(setup.engine, [(b"c", b"bad")], topic="bills")
    setup.park(b"bad")
    for wrong in ({}, {"all": True, "topic": "bills"}):
        with pytest.raises(ConfigurationError, match="Select parked messages"):
            ParkedSelection(**wrong)
    with pytest.raises(ConfigurationError, match="is not parked"):
        parked.retry(setup.engine, TABLES, ParkedSelection(ids=[ids[0], make_id()]))
    assert setup.values() == []
    assert parked.drop(setup.engine, TABLES, ParkedSelection(topic="bills")).messages == 1
    assert parked.retry(setup.engine, TABLES, ParkedSelection(all=True)).messages == 2
    assert len(setup.values()) == 2


@deletes_only
def test_status_tells_what_waits_what_is_parked_and_why(setup):
    write(setup.engine, [(b"a", b"bad"), (b"a", b"later"), (b"b", b"fails"), (b"c", b"waits")])
    setup.park(b"bad")
    rows = setup.claim()
    setup.store.park_behind(setup.tokens, rows)
    failing = next(row.seq for row in rows if row.value == b"fails")
    setup.store.note_failure(setup.tokens, [failing], "broker away " + "x" * 1000)
    with setup.engine.connect() as connection:
        status = read_status(connection, TABLES)
    assert (status.waiting, status.failing, status.attempts, status.parked, status.behind) == (2, 1, 1, 1, 1)
    assert status.oldest_seconds is not None
    assert status.last_error.startswith("broker away")
    assert len(status.last_error) <= 500
    (message,) = status.parked_messages
    assert (message.key, message.error, message.attempts, message.behind) == (b"a", "no", 1, 1)
    (relay,) = status.relays
    assert (relay.holder, relay.buckets, relay.live, status.free_buckets) == ("me", BUCKETS, True, 0)


@keeps_only
def test_kept_rows_are_cleaned_a_few_at_a_time_once_they_are_old(setup):
    write(setup.engine, [(b"a", str(n).encode()) for n in range(5)])
    rows = setup.claim()[:4]
    sent = SendResult(acknowledged=[r.seq for r in rows], positions=[SentPosition(r.seq, 0, 0) for r in rows])
    setup.store.settle(setup.tokens, sent)
    assert setup.store.clean(keep_seconds=3600, rows=10) == 0
    assert setup.store.clean(keep_seconds=-1, rows=3) == 3
    assert setup.store.clean(keep_seconds=-1, rows=3) == 1
    assert setup.values() == [b"4"], "what was not sent stays"


@deletes_only
def test_a_row_that_commits_late_is_found_before_the_later_ones(setup):
    if setup.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time: nothing commits late")
    with begin(setup.engine, whose="test") as late:
        values = {"id": make_id(), "bucket": bucket_of(b"a", UUID(int=0)), "topic": "t", "key": b"a"}
        late.execute(insert(OUTBOX).values(value=b"late", **values))
        write(setup.engine, [(b"b", b"later")])
        rows = setup.claim()
        assert [row.value for row in rows] == [b"later"]
        setup.store.settle(
            setup.tokens, SendResult(acknowledged=[rows[0].seq], positions=[SentPosition(rows[0].seq, 0, 0)])
        )
    assert setup.values() == [b"late"]


@deletes_only
def test_a_missing_table_is_told_as_such(setup):
    with begin(setup.engine, whose="test") as connection:
        OUTBOX.drop(connection)
    with pytest.raises(PermanentError, match=r"Outbox oncehouse_outbox: .*Check that its tables are made"):
        setup.claim()
