"""A batch whose answer was lost, into a table that keeps no count of blocks: the time of its tokens still bounds it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from oncehouse.clickhouse.insert.deadline import read_moment
from oncehouse.clickhouse.table_info import TableFacts
from oncehouse.messaging import repeated_insert
from oncehouse.messaging.repeated_insert import SentInsert, TokenForgottenError, require_remembered
from table_facts import make_table_facts

FACTS = make_table_facts(
    database="shop",
    table="events",
    uuid="6a0b8c1e-0000-4000-8000-000000000000",
    engine="SharedMergeTree",
    sorting_key="id",
    window_blocks=10_000,
    window_seconds=3600.0,
)


@dataclass(frozen=True)
class Server:
    insert_timeout_seconds: float = 300.0

    def now(self) -> float:
        return 1_800_000_000.0


@pytest.fixture
def repeat(monkeypatch):
    """What is decided so many seconds after the INSERT was sent."""

    def after(seconds: float, facts: TableFacts = FACTS) -> None:
        monkeypatch.setattr(repeated_insert, "describe_table", lambda *_: facts)
        monkeypatch.setattr(repeated_insert, "find_forgetful_view", lambda *_, **__: None)
        now = read_moment()
        began = replace(now, boot_seconds=now.boot_seconds - seconds, wall_seconds=now.wall_seconds - seconds)
        require_remembered(Server(), "shop.events", "orders-1", SentInsert(count=None, began=began), None)

    return after


def test_a_repeat_within_the_time_of_the_tokens_is_sent(repeat):
    repeat(3200)
    repeat(10 * 86_400, replace(FACTS, window_seconds=None))


def test_a_repeat_is_not_sent_where_the_token_would_be_forgotten_before_it_is_done(repeat):
    with pytest.raises(
        TokenForgottenError, match=r"remembers 10000 blocks of the last 3600 s, has taken others"
    ):
        repeat(4200)
    with pytest.raises(TokenForgottenError):
        repeat(3400)
