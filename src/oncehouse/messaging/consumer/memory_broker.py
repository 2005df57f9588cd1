"""A broker in memory for tests: topics, partitions, groups with rebalances and commits, and their failures.

Behaves as Kafka does for a consumer: offsets per partition, one owner of a partition in a group, commits of other
members refused, partitions that move when members join and leave, and members that are expelled. Thread-safe.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import Condition, RLock
from typing import Any

from oncehouse.errors import ConfigurationError, TransientError
from oncehouse.messaging.clock import Clock, ManualClock
from oncehouse.messaging.consumer.client import Listener
from oncehouse.messaging.consumer.commit_plan import CommittedPosition, read_plan, write_plan
from oncehouse.messaging.consumer.records import MemoryRecord, make_message
from oncehouse.messaging.failure_policy import OutgoingMessage, Partition
from oncehouse.messaging.message import Headers, Message


@dataclass(kw_only=True)
class _Log:
    records: list[MemoryRecord] = field(default_factory=list)
    end: int = 0


@dataclass(kw_only=True)
class _Group:
    members: list[MemoryClient] = field(default_factory=list)
    owners: dict[Partition, MemoryClient] = field(default_factory=dict)
    committed: dict[Partition, tuple[int, str]] = field(default_factory=dict)


class MemoryBroker:
    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        clock: Clock | None = None,
        eager: bool = False,
    ) -> None:
        """`topics` with their numbers of partitions. `eager`: every rebalance revokes all, as `range` does."""
        self.clock: Clock = clock or ManualClock()
        self.eager = eager
        self.changed = Condition(RLock())
        self._logs: dict[str, list[_Log]] = {}
        self._groups: dict[str, _Group] = {}
        self._refused_commits = 0
        self._turns = count()
        for topic, partitions in (topics or {}).items():
            self.create_topic(topic, partitions)

    # For tests.

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        with self.changed:
            self._logs[topic] = [_Log() for _ in range(partitions)]

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> int:
        """Append a message and return its offset. Without a partition: by key, or one after the other."""
        with self.changed:
            logs = self._logs_of(topic)
            if partition is None:
                partition = (next(self._turns) if key is None else zlib.crc32(key)) % len(logs)
            log, now = logs[partition], int(self.clock.now() * 1000)
            log.records.append(MemoryRecord(topic, partition, log.end, key, value, headers, now))
            log.end += 1
            self.changed.notify_all()
            return log.end - 1

    def messages(self, topic: str) -> list[Message]:
        """All messages of the topic, partition by partition."""
        with self.changed:
            return [make_message(record) for log in self._logs_of(topic) for record in log.records]

    def committed(self, group: str, topic: str, partition: int = 0) -> int | None:
        with self.changed:
            found = self._group(group).committed.get((topic, partition))
            return None if found is None else found[0]

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete records as retention does."""
        with self.changed:
            log = self._logs_of(topic)[partition]
            log.records = [record for record in log.records if record.offset() >= offset]

    def expire(self, group: str) -> None:
        """Expel all members, as a session timeout does: their partitions are lost, and they join again."""
        with self.changed:
            for member in self._group(group).members:
                member.expelled = True
            self._group(group).members.clear()
            self._group(group).owners.clear()
            self.changed.notify_all()

    def refuse_commits(self, times: int) -> None:
        """Make the next `times` commits fail."""
        with self.changed:
            self._refused_commits = times

    def client(self, group: str) -> MemoryClient:
        return MemoryClient(self, group)

    def broker(self, group: str) -> MemoryRetryBroker:
        return MemoryRetryBroker(self, group)

    # For its clients.

    def _logs_of(self, topic: str) -> list[_Log]:
        if topic not in self._logs:
            raise ConfigurationError(f"there is no topic {topic} in this broker; create it first")
        return self._logs[topic]

    def _group(self, name: str) -> _Group:
        return self._groups.setdefault(name, _Group())

    def count_partitions(self, topic: str) -> int | None:
        with self.changed:
            return len(self._logs[topic]) if topic in self._logs else None

    def records_from(self, partition: Partition, offset: int, most: int) -> list[MemoryRecord]:
        with self.changed:
            records = self._logs_of(partition[0])[partition[1]].records
            first = records[0].offset() if records else 0
            start = max(0, offset - first)
            return records[start : start + most]

    def ends(self, partition: Partition) -> tuple[int, int]:
        with self.changed:
            log = self._logs_of(partition[0])[partition[1]]
            return (log.records[0].offset() if log.records else log.end), log.end

    def position(self, group: str, partition: Partition) -> CommittedPosition:
        with self.changed:
            found = self._group(group).committed.get(partition)
            return CommittedPosition() if found is None else read_plan(*found)

    def commit(
        self, group: str, partition: Partition, position: CommittedPosition, *, member: MemoryClient
    ) -> None:
        with self.changed:
            if self._refused_commits:
                self._refused_commits -= 1
                raise TransientError("this commit was refused on request")
            if self._group(group).owners.get(partition) is not member:
                raise TransientError(
                    f"{partition[0]}/{partition[1]} belongs to another member of group {group}"
                )
            self._group(group).committed[partition] = (position.offset or 0, write_plan(position))

    def join(self, group: str, member: MemoryClient) -> None:
        with self.changed:
            self._group(group).members.append(member)
            self.changed.notify_all()

    def leave(self, group: str, member: MemoryClient) -> None:
        with self.changed:
            found = self._group(group)
            found.members = [other for other in found.members if other is not member]
            found.owners = {key: owner for key, owner in found.owners.items() if owner is not member}
            self.changed.notify_all()

    def target(self, group: str, member: MemoryClient) -> set[Partition]:
        """The partitions this member should own: partition p of every topic goes to the same member."""
        with self.changed:
            found: set[Partition] = set()
            for topic in member.topics:
                readers = [other for other in self._group(group).members if topic in other.topics]
                for partition in range(len(self._logs_of(topic))):
                    if readers and readers[partition % len(readers)] is member:
                        found.add((topic, partition))
            return found

    def give(self, group: str, partitions: Collection[Partition], member: MemoryClient) -> set[Partition]:
        """Assign those of the partitions that have no owner, and return them."""
        with self.changed:
            owners = self._group(group).owners
            free = {key for key in partitions if key not in owners}
            owners.update(dict.fromkeys(free, member))
            return free

    def take_back(self, group: str, partitions: Collection[Partition], member: MemoryClient) -> None:
        with self.changed:
            owners = self._group(group).owners
            for key in partitions:
                if owners.get(key) is member:
                    del owners[key]
            self.changed.notify_all()


class MemoryClient:
    """A member of a group; implements `client.BrokerClient`."""

    def __init__(self, broker: MemoryBroker, group: str) -> None:
        self._broker = broker
        self._group = group
        self.topics: tuple[str, ...] = ()
        self.expelled = False
        self._next: dict[Partition, int] = {}
        self._paused: set[Partition] = set()
        self._answers: deque[tuple[Partition, CommittedPosition, str]] = deque()

    def open_retry_broker(self) -> MemoryRetryBroker:
        return self._broker.broker(self._group)

    def open(self, topics: Sequence[str], *, beginning: Collection[str], listener: Listener) -> None:  # noqa: ARG002
        for topic in topics:
            if self._broker.count_partitions(topic) is None:
                raise ConfigurationError(f"there is no topic {topic} in this broker; create it first")
        self.topics, self._listener = tuple(topics), listener
        self._broker.join(self._group, self)

    def consume(self, count: int, timeout_seconds: float) -> list[Any]:
        self._answer()
        self._rebalance()
        found = self._fetch(count)
        if not found and timeout_seconds > 0 and not isinstance(self._broker.clock, ManualClock):
            with self._broker.changed:
                self._broker.changed.wait(timeout_seconds)
            self._answer()
            found = self._fetch(count)
        return found

    def _fetch(self, count: int) -> list[MemoryRecord]:
        found: list[MemoryRecord] = []
        for key in sorted(self._next.keys() - self._paused):
            records = self._broker.records_from(key, self._next[key], count - len(found))
            if records:
                self._next[key] = records[-1].offset() + 1
                found += records
        return found

    def _answer(self) -> None:
        while self._answers:
            partition, position, error = self._answers.popleft()
            if error:
                self._listener.on_commit_failed(partition, error)
            else:
                self._listener.on_committed(partition, position)

    def _rebalance(self) -> None:
        if self.expelled:
            self.expelled = False
            lost = self._forget(self._next.keys())
            self._listener.on_lost(lost)
            self._broker.join(self._group, self)
        target = self._broker.target(self._group, self)
        if self._broker.eager and target != self._next.keys():
            self._give_up(set(self._next))
        else:
            self._give_up(self._next.keys() - target)
        given = self._broker.give(self._group, target - self._next.keys(), self)
        if given:
            positions = {key: self._broker.position(self._group, key) for key in sorted(given)}
            self._next |= {key: position.offset or 0 for key, position in positions.items()}
            self._listener.on_assigned(positions)

    def _give_up(self, partitions: Collection[Partition]) -> None:
        if partitions:
            self._listener.on_revoked(sorted(partitions))
            self._broker.take_back(self._group, self._forget(partitions), self)

    def _forget(self, partitions: Collection[Partition]) -> list[Partition]:
        keys = sorted(partitions)
        for key in keys:
            del self._next[key]
            self._paused.discard(key)
        return keys

    def commit(self, partition: Partition, position: CommittedPosition) -> None:
        try:
            self._broker.commit(self._group, partition, position, member=self)
        except TransientError as error:
            self._answers.append((partition, position, str(error)))
        else:
            self._answers.append((partition, position, ""))

    def commit_now(self, positions: Mapping[Partition, CommittedPosition]) -> None:
        for partition, position in positions.items():
            self._broker.commit(self._group, partition, position, member=self)

    def pause(self, partition: Partition) -> None:
        self._paused.add(partition)

    def resume(self, partition: Partition) -> None:
        self._paused.discard(partition)

    def end_of(self, partition: Partition) -> int | None:
        return self._broker.ends(partition)[1]

    def first_of(self, partition: Partition) -> int | None:
        return self._broker.ends(partition)[0]

    def close(self) -> None:
        self._answer()
        self._give_up(set(self._next))
        self._broker.leave(self._group, self)


class MemoryRetryBroker:
    """The retry broker in memory."""

    def __init__(self, broker: MemoryBroker, group: str) -> None:
        self._broker = broker
        self._group = group

    def count_partitions(self, topic: str) -> int | None:
        return self._broker.count_partitions(topic)

    def create(self, topic: str, *, partitions: int, source: str) -> None:  # noqa: ARG002
        self._broker.create_topic(topic, partitions)

    def send(self, outgoing: Sequence[OutgoingMessage]) -> list[int]:
        return [
            self._broker.send(at.topic, at.value, key=at.key, headers=at.headers, partition=at.partition)
            for at in outgoing
        ]

    def read_uncommitted(self, topic: str, partition: int) -> Iterator[tuple[int, bytes | None]]:
        start = self._broker.position(self._group, (topic, partition)).offset or 0
        end = self._broker.ends((topic, partition))[1]
        for record in self._broker.records_from((topic, partition), start, end):
            yield record.offset(), record.key()

    def close(self) -> None:
        pass
