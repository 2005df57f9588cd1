"""A partition that is lost and comes back within one poll: nothing of the former term reaches the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from consumer_simulation import TOPIC, ConsumerSimulation
from oncehouse.messaging.consumer import events as ev
from oncehouse.messaging.consumer.commit_plan import CommittedPosition

HERE = (TOPIC, 0)


class Listening:
    """A client whose next poll brings whatever a test says; writes down what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.happens: Callable[[], None] = lambda: None

    def consume(self, count: int, timeout_seconds: float) -> list[Any]:
        happens, self.happens = self.happens, lambda: None
        happens()
        return []

    def commit(self, partition: Any, position: CommittedPosition) -> None:
        self.asked.append(("commit", partition, position.offset))

    def pause(self, partition: Any) -> None:
        self.asked.append(("pause", partition))

    def resume(self, partition: Any) -> None:
        self.asked.append(("resume", partition))

    def end_of(self, partition: Any) -> None:
        return None


def test_an_old_commit_or_pause_of_a_lost_partition_is_not_carried_out_in_its_next_term():
    simulation = ConsumerSimulation(partitions=1)
    simulation.join()
    runner, client = simulation.members[0].runner, Listening()
    runner._client = client
    runner.on_assigned({HERE: CommittedPosition(offset=0)})

    def lose_and_get_back() -> None:
        # A handler ends and a buffer fills while the poll is under way; then the group throws us out.
        runner._do(ev.Commit(partition=HERE, position=CommittedPosition(offset=10)))
        runner._do(ev.PausePartition(partition=HERE))
        runner.on_lost([HERE])
        runner.on_assigned({HERE: CommittedPosition(offset=50)})

    client.happens = lose_and_get_back
    runner.step()
    assert client.asked == []
