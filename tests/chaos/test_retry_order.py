"""Order by key under many more random schedules than the unit tests play."""

from __future__ import annotations

import random

import pytest

from oncehouse.messaging.retries.retry_topics import RetryTopics
from retry_simulation import RetrySimulation


@pytest.mark.parametrize("first_seed", range(0, 10_000, 1_000))
def test_order_by_key_holds_and_nothing_is_lost(first_seed):
    for seed in range(first_seed, first_seed + 1_000):
        dice = random.Random(seed)
        simulation = RetrySimulation(
            dice, policy=lambda: RetryTopics(delays=[1, 5], order="key"), partitions=dice.randint(1, 3)
        )
        simulation.run(
            messages=dice.randint(1, 40), keys=dice.randint(1, 6), disturbances=dice.randint(0, 10)
        )
        assert not simulation.broken, f"seed {seed}"
        assert not simulation.lost(), f"seed {seed}"
