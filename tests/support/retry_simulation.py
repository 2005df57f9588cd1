"""Brokers, consumers and time in memory, in which retry topics are tried: every step may be the last of a process.

A `RetrySimulation` interleaves the batches of all partitions step by step, crashes a consumer, moves partitions between
consumers and lets one that has lost its partitions go on for a while. It notes each success of a handler and checks,
for order by key, that all earlier messages of that key were handled or given up.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from oncehouse.errors import TransientError
from oncehouse.messaging.failure_policy import FailedMessage, OutgoingMessage, Partition
from oncehouse.messaging.message import Headers, Message
from oncehouse.messaging.retries.retry_topics import RetryTopics

SOURCE = "orders"
START = 1_700_000_000.0


@dataclass(kw_only=True)
class MemoryRetryBroker:
    """The brokers of one simulation; `fails_at` is asked before each write."""

    topics: dict[str, list[list[Message]]] = field(default_factory=dict)
    committed: dict[Partition, int] = field(default_factory=dict)
    now: float = START
    fails_at: Callable[[], bool] = lambda: False

    def count_partitions(self, topic: str) -> int | None:
        return len(self.topics[topic]) if topic in self.topics else None

    def create(self, topic: str, *, partitions: int, source: str) -> None:
        assert source in self.topics
        self.topics.setdefault(topic, [[] for _ in range(partitions)])

    def send(self, outgoing: Sequence[OutgoingMessage]) -> list[int]:
        offsets = []
        for placement in outgoing:
            if self.fails_at():
                raise TransientError("the brokers are gone")
            offsets.append(
                self.append(
                    placement.topic, placement.partition, placement.key, placement.value, placement.headers
                )
            )
        return offsets

    def read_uncommitted(self, topic: str, partition: int) -> Iterator[tuple[int, bytes | None]]:
        for message in self.topics[topic][partition][self.committed.get((topic, partition), 0) :]:
            yield message.offset, message.key

    def close(self) -> None:
        pass

    def append(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> int:
        log = self.topics[topic][partition]
        log.append(
            Message(
                topic=topic,
                partition=partition,
                offset=len(log),
                key=key,
                value=value,
                headers=headers,
                timestamp_ms=round(self.now * 1000),
            )
        )
        return len(log) - 1


@dataclass(eq=False, kw_only=True)
class Member:
    policy: RetryTopics
    ours: set[Partition] = field(default_factory=set)
    batches: dict[Partition, Iterator[None]] = field(default_factory=dict)


class RetrySimulation:
    def __init__(
        self, dice: random.Random, *, policy: Callable[[], RetryTopics], partitions: int = 2
    ) -> None:
        self.dice = dice
        self.make_policy = policy
        self.broker = MemoryRetryBroker(topics={SOURCE: [[] for _ in range(partitions)]})
        self.broker.fails_at = lambda: dice.random() < 0.02
        self.handled: list[bytes] = []
        self.broken: list[str] = []
        self.failing: dict[bytes, int] = {}
        self.ghosts: list[Iterator[None]] = []
        self.members = [self.start(), self.start()]
        self.levels = (SOURCE, *self.members[0].policy.topics(SOURCE))
        for topic in self.levels:
            for number in range(partitions):
                self.give((topic, number), dice.choice(self.members))

    def start(self) -> Member:
        policy = self.make_policy()
        policy.open(SOURCE, self.broker)
        return Member(policy=policy)

    def give(self, partition: Partition, member: Member) -> None:
        member.ours.add(partition)
        member.policy.assigned([partition])

    def produce(self, count: int, keys: int) -> None:
        for number in range(count):
            key = self.dice.randrange(keys)
            value = b"%d:%d" % (key, number)
            # Most messages succeed at once, some after a while, a few never.
            self.failing[value] = self.dice.choice([0, 0, 0, 1, 2, 99])
            self.broker.append(SOURCE, key % len(self.broker.topics[SOURCE]), b"k%d" % key, value)

    def handle(self, message: Message) -> str:
        """The handler: empty when it succeeds."""
        value = message.value or b""
        if self.failing[value] > 0:
            self.failing[value] -= 1
            return "refused"
        if value not in self.handled:
            self.check_order(message)
        self.handled.append(value)
        return ""

    def check_order(self, message: Message) -> None:
        given_up = {letter.value for log in self.broker.topics[f"{SOURCE}.dlq"] for letter in log}
        for earlier in self.broker.topics[SOURCE][message.partition]:
            if earlier.value == message.value:
                return
            if (
                earlier.key == message.key
                and earlier.value not in self.handled
                and earlier.value not in given_up
            ):
                self.broken.append(f"{message.value!r} was handled before {earlier.value!r}")

    def run_batch(self, member: Member, partition: Partition) -> Iterator[None]:
        """One batch from reading to commit, as a consumer does it; each yield is a place where all may end."""
        topic, number = partition
        start = self.broker.committed.get(partition, 0)
        batch = self.broker.topics[topic][number][start : start + self.dice.randint(1, 4)]
        batch = batch[
            : next((at for at, one in enumerate(batch) if not self.is_due(member, one)), len(batch))
        ]
        if not batch:
            return
        rest = list(batch)
        while rest:
            waiting = set(member.policy.find_blocked(rest))
            yield
            message, blocked = rest[0], 0 in waiting
            error = "" if blocked else self.handle(message)
            yield
            if blocked or error:
                while not self.divert(
                    member, FailedMessage(message=message, error=error, failed_at=self.broker.now)
                ):
                    if partition not in member.ours:
                        return
                    yield
                yield
            rest.pop(0)
        if partition not in member.ours:
            return  # the brokers refuse the commit of one who has lost the partition
        self.broker.committed[partition] = batch[-1].offset + 1
        yield
        member.policy.committed(batch)

    def is_due(self, member: Member, message: Message) -> bool:
        due = member.policy.due_at(message)
        return due is None or due <= self.broker.now

    def divert(self, member: Member, failure: FailedMessage) -> bool:
        try:
            member.policy.divert([failure])
        except TransientError:
            return False
        return True

    def step(self) -> None:
        member = self.dice.choice(self.members)
        if member.ours:
            self.advance(member, self.dice.choice(sorted(member.ours)))
        if self.ghosts and self.dice.random() < 0.2:
            ghost = self.dice.choice(self.ghosts)
            if next(ghost, ghost) is ghost:
                self.ghosts.remove(ghost)
        self.broker.now += self.dice.choice([0, 0, 0.5, 3])

    def advance(self, member: Member, partition: Partition) -> None:
        running = member.batches.get(partition) or self.run_batch(member, partition)
        member.batches[partition] = running
        if next(running, running) is running:
            del member.batches[partition]

    def disturb(self) -> None:
        match self.dice.choice(["crash", "freeze", "move"]):
            case "crash":
                self.end(self.dice.randrange(2))
            case "freeze":
                # It has not heard that its partitions are gone, and goes on where it was.
                self.ghosts += self.end(self.dice.randrange(2)).batches.values()
            case "move":
                self.move()

    def end(self, at: int) -> Member:
        gone = self.members[at]
        partitions = sorted(gone.ours)
        gone.ours.clear()
        self.members[at] = self.start()
        for partition in partitions:
            self.give(partition, self.dice.choice(self.members))
        return gone

    def move(self) -> None:
        giver = self.dice.choice(self.members)
        if not giver.ours:
            return
        partition = self.dice.choice(sorted(giver.ours))
        giver.ours.discard(partition)
        if (left := giver.batches.pop(partition, None)) is not None:
            # What its handler has begun may go on, but it is not settled here any more.
            self.ghosts.append(left)
        giver.policy.revoked([partition])
        self.give(partition, self.dice.choice(self.members))

    def run(self, *, messages: int, keys: int, disturbances: int) -> None:
        self.produce(messages, keys)
        for _ in range(disturbances):
            for _ in range(self.dice.randint(1, 40)):
                self.step()
            self.disturb()
        self.broker.fails_at = lambda: False
        for _ in range(100 * messages):
            for member in self.members:
                for partition in sorted(member.ours):
                    self.advance(member, partition)
            self.broker.now += 1
            if not self.is_busy():
                return
        raise AssertionError("the simulation does not come to rest")

    def is_busy(self) -> bool:
        return any(
            self.broker.committed.get((topic, number), 0) < len(log)
            for topic in self.levels
            for number, log in enumerate(self.broker.topics[topic])
        )

    def lost(self) -> set[bytes]:
        letters = {letter.value for log in self.broker.topics[f"{SOURCE}.dlq"] for letter in log}
        return set(self.failing) - set(self.handled) - {value for value in letters if value is not None}


def settle_early(policy: RetryTopics) -> RetryTopics:
    """A seeded defect: a key is let go as soon as its message is read again."""
    find_blocked = policy.find_blocked

    def find_and_commit(messages: Sequence[Message]) -> list[int]:
        found = find_blocked(messages)
        policy.committed(messages)
        return found

    policy.find_blocked = find_and_commit  # type: ignore[method-assign]
    return policy
