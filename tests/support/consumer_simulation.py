"""Consumers over the broker in memory, driven step by step, and an oracle that sees every success of a handler.

Members come, step, crash, stop and are thrown out in any order. What must hold, whatever happened:
a partition's records are handled in order; a record is handled again only after a crash or a loss; two successes that
share a record are the same batch with the same token; in the end each record was handled, or put aside, and committed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from oncehouse.common.backoff import Backoff
from oncehouse.errors import PermanentError, TransientError
from oncehouse.messaging.clock import ManualClock
from oncehouse.messaging.consumer.batch import Batch
from oncehouse.messaging.consumer.handler_rules import HandlerRules, Subscription
from oncehouse.messaging.consumer.memory_broker import MemoryBroker, MemoryClient
from oncehouse.messaging.consumer.metrics import NoMetrics
from oncehouse.messaging.consumer.partition_tasks import InlineExecutor
from oncehouse.messaging.consumer.runner import ConsumerRunner, ShutdownLimits
from oncehouse.messaging.consumer.workers import ThreadWorkers
from oncehouse.messaging.failure_policy import FailedMessage, Partition, RetryBroker
from oncehouse.messaging.message import Message

TOPIC, GROUP = "events", "g"
POISON = b"poison"


@dataclass(kw_only=True)
class RecordingPolicy:
    """Dead letters in a list; fails as often as it is told to."""

    diverted: list[tuple[int, int]] = field(default_factory=list)
    failing: int = 0

    def open(self, source: str, broker: RetryBroker) -> None:
        pass

    def topics(self, source: str) -> tuple[str, ...]:
        return ()

    def assigned(self, partitions: Collection[Partition]) -> None:
        pass

    def revoked(self, partitions: Collection[Partition]) -> None:
        pass

    def due_at(self, message: Message) -> float | None:
        return None

    def find_blocked(self, messages: Sequence[Message]) -> list[int]:
        return []

    def divert(self, failures: Sequence[FailedMessage]) -> None:
        if self.failing:
            self.failing -= 1
            raise TransientError("out of reach")
        self.diverted += [(failure.message.partition, failure.message.offset) for failure in failures]

    def committed(self, messages: Sequence[Message]) -> None:
        pass


@dataclass(kw_only=True)
class Member:
    runner: ConsumerRunner
    executor: InlineExecutor
    client: MemoryClient


@dataclass(frozen=True, kw_only=True)
class Success:
    token: str
    partition: int
    offsets: tuple[int, ...]
    crashes: int
    """How many crashes and losses there had been."""


class ConsumerSimulation:
    def __init__(self, *, partitions: int = 2, eager: bool = False, size: int = 3) -> None:
        self.clock = ManualClock()
        self.broker = MemoryBroker({TOPIC: partitions}, clock=self.clock, eager=eager)
        self.partitions = partitions
        self.policy = RecordingPolicy()
        self.rules = HandlerRules(
            topic=TOPIC,
            size=size,
            wait_seconds=1.0,
            concurrency=2,
            attempts=2,
            backoff=Backoff(base_seconds=0.5, longest_seconds=4.0),
            diverts=True,
        )
        self.members: list[Member] = []
        self.successes: list[Success] = []
        self.crashes = 0
        self.thrown_out_at: dict[MemoryClient, int] = {}
        self.transient_failures = 0
        self.dice = 0.5

    def handle(self, batch: Batch, client: MemoryClient) -> None:
        if self.transient_failures:
            self.transient_failures -= 1
            raise TransientError("later")
        if POISON in batch.values:
            raise PermanentError("poison")
        self.successes.append(
            Success(
                token=batch.token,
                partition=batch.partition,
                offsets=tuple(message.offset for message in batch),
                # Who does not know yet that it was thrown out still lives in the time before.
                crashes=self.thrown_out_at.get(client, 0) if client.expelled else self.crashes,
            )
        )

    def join(self) -> None:
        executor = InlineExecutor()
        client = self.broker.client(GROUP)
        runner = ConsumerRunner(
            group=GROUP,
            client=client,
            subscriptions=[
                Subscription(
                    rules=self.rules, handler=lambda batch: self.handle(batch, client), policy=self.policy
                )
            ],
            workers={TOPIC: ThreadWorkers(executor)},
            executor=executor,
            clock=self.clock,
            metrics=NoMetrics(),
            shutdown_limits=ShutdownLimits(),
            jitter=lambda: self.dice,
        )
        runner.open()
        self.members.append(Member(runner=runner, executor=executor, client=client))

    def crash(self, at: int) -> None:
        member = self.members.pop(at)
        self.broker.leave(GROUP, member.client)
        self.crashes += 1

    def stop(self, at: int) -> None:
        self.members.pop(at).runner.finish()

    def throw_out(self) -> None:
        for member in self.members:
            if not member.client.expelled:
                self.thrown_out_at[member.client] = self.crashes
        self.broker.expire(GROUP)
        self.crashes += 1

    def come_to_rest(self) -> None:
        """Let everything that can happen happen, with one member at least."""
        self.policy.failing = self.transient_failures = 0
        self.broker.refuse_commits(0)
        if not self.members:
            self.join()
        for _ in range(3_000):
            before = sum(member.runner.activity for member in self.members)
            for member in self.members:
                member.runner.step()
                while member.executor.run_one():
                    pass
            if sum(member.runner.activity for member in self.members) == before:
                wake_at = min(
                    member.runner.state_machine.wake_at(self.clock.monotonic()) for member in self.members
                )
                if wake_at > self.clock.monotonic() + 3600:
                    return
                self.clock.advance(wake_at - self.clock.monotonic())
        raise AssertionError("the consumers do not come to rest")

    # The oracle.

    def check_order_and_repeats(self) -> None:
        for partition in range(self.partitions):
            self._check_partition([one for one in self.successes if one.partition == partition])

    def _check_partition(self, successes: list[Success]) -> None:
        first_of: dict[int, Success] = {}
        for success in successes:
            assert list(success.offsets) == sorted(success.offsets), "out of order within a batch"
            for offset in success.offsets:
                before = first_of.get(offset)
                if before is not None:
                    assert before.token == success.token, f"{before.token} came again as {success.token}"
                    assert before.crashes != success.crashes, f"{success.token} came again without a crash"
            new = [offset for offset in success.offsets if offset not in first_of]
            assert not new or not first_of or min(new) > max(first_of), f"{success.token} came out of order"
            first_of |= dict.fromkeys(new, success)

    def check_all_done(self) -> None:
        self.check_order_and_repeats()
        handled = {(one.partition, offset) for one in self.successes for offset in one.offsets}
        messages = self.broker.messages(TOPIC)
        poison = {(one.partition, one.offset) for one in messages if one.value == POISON}
        everything = {(one.partition, one.offset) for one in messages}
        assert handled == everything - poison, "lost, or poison handled"
        assert set(self.policy.diverted) == poison, "put aside wrongly"
        if not self.crashes:
            assert len(self.policy.diverted) == len(poison), "put aside twice"
        for partition in range(self.partitions):
            count = sum(one.partition == partition for one in messages)
            assert (self.broker.committed(GROUP, TOPIC, partition) or 0) == count, "not committed to the end"
