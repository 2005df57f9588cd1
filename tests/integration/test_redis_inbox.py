"""The inbox on a real Redis: what it skips, what it refuses for now, and what it may do twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import redis as redis_package
from redis.asyncio import Redis as AsyncRedis
from redis.backoff import NoBackoff
from redis.retry import Retry

from inbox_examples import message
from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.messaging.inbox.once import InboxCounts
from oncehouse.messaging.inbox.redis_inbox import RedisInbox
from oncehouse.messaging.message import Message


@pytest.fixture
def client(redis):
    opened = redis_package.Redis.from_url(redis.url)
    yield opened
    opened.close()


@pytest.fixture
def inbox(client) -> RedisInbox:
    return RedisInbox(client, prefix=f"test-{uuid.uuid4().hex}")


def test_a_message_that_comes_again_is_skipped_and_counted(inbox):
    done = []
    handler = inbox.once(consumer="mail", keep="1h")(done.append)
    for message_id in ("1", "2", "1"):
        handler(message(message_id))
    assert [one.message_id for one in done] == ["1", "2"]
    assert inbox.counts == {"mail": InboxCounts(handled=2, repeated=1)}


def test_a_handler_gives_back_what_it_returns(inbox):
    handler = inbox.once(consumer="mail", keep="1h")(lambda one: one.offset)
    assert handler(message("1", offset=7)) == 7
    assert handler(message("1", offset=7)) is None


def test_of_a_batch_the_handler_gets_only_what_is_new(inbox):
    done = []
    handler = inbox.once(consumer="mail", keep="1h")(done.extend)
    handler([message("1"), message("2"), message("1")])
    handler([message("2"), message("3")])
    handler([message("3")])
    assert [one.message_id for one in done] == ["1", "2", "3"]
    assert inbox.counts["mail"] == InboxCounts(handled=3, repeated=3)


def test_a_message_whose_handler_failed_runs_again(inbox):
    answers = [RuntimeError("no"), None]

    @inbox.once(consumer="mail", keep="1h")
    def handler(_one):
        if (answer := answers.pop(0)) is not None:
            raise answer

    with pytest.raises(RuntimeError):
        handler(message("1"))
    handler(message("1"))
    assert answers == []


def test_a_message_that_another_handles_is_refused_for_now_and_the_rest_is_let_go(inbox, client):
    done = []
    mail = inbox.once(consumer="mail", keep="1h")(done.append)
    batch = inbox.once(consumer="batch", keep="1h")(done.extend)

    @inbox.once(consumer="outer", keep="1h")
    def outer(one):
        with pytest.raises(TransientError, match="message header:orders/1 is being handled elsewhere"):
            outer(one)
        mail(one)

    outer(message("1"))
    assert [one.message_id for one in done] == ["1"]
    client.set(f"{inbox._prefix}:batch:header:orders/2", "somebody")
    with pytest.raises(TransientError):
        batch([message("1"), message("2")])
    client.delete(f"{inbox._prefix}:batch:header:orders/2")
    batch([message("1"), message("2")])
    assert [one.message_id for one in done] == ["1", "1", "2"]


def at(position: str, **headers: str) -> Message:
    topic, partition, offset = position.split("/")
    named = tuple((f"oncehouse-{name}", value.encode()) for name, value in headers.items())
    return Message(
        topic=topic, partition=int(partition), offset=int(offset), key=b"k", value=b"v", headers=named
    )


def test_no_record_of_another_topic_makes_a_message_skipped(inbox):
    done: list[str] = []
    handler = inbox.once(consumer="mail", keep="1h")(lambda one: done.append(one.position))
    forged = [
        at("payments/0/1", id="42"),
        at("payments/0/2", origin="orders/0/7"),
        at("payments/0/3", id="orders/0/7"),
        at("payments/0/4", id="header:orders/42"),
    ]
    for one in (*forged, at("orders/0/1", id="42"), at("orders/0/7"), *forged):
        handler(one)
    assert done == [*(one.position for one in forged), "orders/0/1", "orders/0/7"]


def test_a_message_stays_itself_through_its_retry_topics(inbox):
    done: list[str] = []
    handler = inbox.once(consumer="mail", keep="1h")(lambda one: done.append(one.position))
    handler(at("orders.retry.1/0/1", origin="orders/0/7", id="42"))
    handler(at("orders.retry.2/0/5", origin="orders/0/7", id="42"))
    handler(at("orders/0/900", origin="orders/0/7", id="42"))
    assert done == ["orders.retry.1/0/1"]


def test_what_was_done_or_claimed_before_the_upgrade_is_not_handled_beside_it(inbox, client):
    done: list[str] = []
    batch = inbox.once(consumer="mail", keep="1h")(lambda given: done.extend(one.position for one in given))
    prefix = f"{inbox._prefix}:mail:"
    client.set(f"{prefix}42", "done")
    client.set(f"{prefix}orders/0/7", "the claim of a worker of the version before")
    messages = [at("orders/0/1", id="42"), at("orders/0/2"), at("orders/0/7")]
    with pytest.raises(TransientError, match="message place:orders/0/7 is being handled elsewhere"):
        batch(messages)
    client.set(f"{prefix}orders/0/7", "done")
    batch(messages)
    assert done == ["orders/0/2"]
    assert sorted(client.keys(f"{prefix}*")) == [
        f"{prefix}{one}".encode() for one in ("42", "orders/0/7", "place:orders/0/2")
    ]


class CutOffClient(redis_package.Redis):
    """Loses the answer to its first lot of commands, which Redis has carried out."""

    cut_off = False

    def pipeline(self, **options):
        pipe = super().pipeline(**options)
        if not self.cut_off:
            self.cut_off = True
            carry_out = pipe.execute

            def execute():
                carry_out()
                raise redis_package.ConnectionError("cut off")

            pipe.execute = execute
        return pipe


def test_a_claim_whose_answer_was_lost_keeps_nobody_waiting(redis):
    cut_off = CutOffClient.from_url(redis.url)
    handled: list[str] = []

    @RedisInbox(cut_off, prefix=f"test-{uuid.uuid4().hex}").once(consumer="c", keep="1h", claim="1h")
    def handle(one):
        handled.append(one.message_id)

    with pytest.raises(TransientError, match="cut off"):
        handle(message("1"))
    handle(message("1"))
    assert handled == ["1"]
    cut_off.close()


def test_a_claim_that_runs_out_while_the_handler_works_is_counted(inbox, client):
    @inbox.once(consumer="mail", keep="1h", claim="1h")
    def handler(_one):
        client.set(f"{inbox._prefix}:mail:header:orders/1", "another")  # as after the claim ran out

    handler(message("1"))
    assert inbox.overrun == 1
    assert client.get(f"{inbox._prefix}:mail:header:orders/1") == b"another"


def test_what_redis_forgets_runs_again(inbox, client):
    done = []
    handler = inbox.once(consumer="mail", keep="1h")(done.append)
    handler(message("1"))
    client.flushall()
    handler(message("1"))
    assert len(done) == 2


def test_notes_expire_with_their_time(inbox, client):
    inbox.once(consumer="mail", keep="7d", claim="1m")(lambda _one: None)(message("1"))
    left_ms = client.pttl(f"{inbox._prefix}:mail:header:orders/1")
    assert 6 * 86_400_000 < left_ms <= 7 * 86_400_000


def test_an_async_handler_sees_each_message_once(redis):
    done = []

    async def run() -> RedisInbox:
        client = AsyncRedis.from_url(redis.url)
        inbox = RedisInbox(client, prefix=f"test-{uuid.uuid4().hex}")

        @inbox.once(consumer="mail", keep="1h")
        async def handler(one):
            await asyncio.sleep(0)
            if one.message_id == "bad":
                raise ValueError
            done.append(one.message_id)
            return len(done)

        assert await handler(message("1")) == 1
        assert await handler(message("1")) is None
        for _ in range(2):
            with pytest.raises(ValueError):
                await handler(message("bad"))
        await client.aclose()
        return inbox

    assert asyncio.run(run()).counts["mail"] == InboxCounts(handled=3, repeated=1)
    assert done == ["1"]


def test_a_redis_that_is_away_is_told_before_anything_is_handled():
    inbox = RedisInbox(redis_package.Redis(port=9, retry=Retry(NoBackoff(), 0)))
    handler = inbox.once(consumer="mail", keep="1h")(lambda _one: pytest.fail("handled"))
    with pytest.raises(TransientError, match=r"Redis does not answer .* nothing was handled"):
        handler(message("1"))


def test_a_client_of_the_wrong_kind_is_refused(inbox):
    async def handler(_one):
        raise AssertionError

    with pytest.raises(ConfigurationError, match=r"an async one redis\.asyncio\.Redis"):
        inbox.once(consumer="mail", keep="1h")(handler)


SCRIPT = """
import sys
import redis
from inbox_examples import message
from oncehouse.messaging.inbox.redis_inbox import RedisInbox

inbox = RedisInbox(redis.Redis.from_url(sys.argv[1]), prefix=sys.argv[2])

@inbox.once(consumer="mail", keep="1h", claim="1h")
def handler(one):
    with open(sys.argv[3], "a") as effects:
        effects.write(one.message_id)

handler(message("1"))
"""


@pytest.mark.parametrize(("point", "effects"), [("claimed", "1"), ("handled", "11")])
def test_a_worker_that_dies_loses_nothing_and_may_double_what_it_had_done(
    redis, client, tmp_path, point, effects
):
    """The weaker promise, as the docs state it: twice after a death between effect and note, never not at all."""
    prefix, file = f"test-{uuid.uuid4().hex}", tmp_path / "effects"
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-c", SCRIPT, redis.url, prefix, str(file)]
    path = os.pathsep.join([str(tests / "support"), str(tests.parent / "src")])
    dying = {**os.environ, "PYTHONPATH": path, "ONCEHOUSE_CRASH_AT": f"redis_inbox.{point}"}
    assert subprocess.run(command, env=dying, check=False).returncode == -signal.SIGKILL

    def write(one):
        with file.open("a") as opened:
            opened.write(one.message_id)

    handler = RedisInbox(client, prefix=prefix).once(consumer="mail", keep="1h")(write)
    with pytest.raises(TransientError, match="handled elsewhere"):
        handler(message("1"))
    client.delete(f"{prefix}:mail:header:orders/1")  # as when the claim has run out
    for _ in range(2):
        handler(message("1"))
    assert file.read_text() == effects
