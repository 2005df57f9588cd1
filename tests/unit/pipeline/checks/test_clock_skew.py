"""Clocks that are too far apart are refused; how long asking took is no difference."""

import pytest

from oncehouse.clickhouse.preflight.finding import Level
from oncehouse.pipeline.checks import clock_skew
from oncehouse.pipeline.checks.clock_skew import ClockReading, check_clocks, read_clocks


@pytest.mark.parametrize(
    ("ahead", "within", "level"),
    [
        (60.0, 0.0, Level.OK),
        (60.1, 0.0, Level.ERROR),
        (-60.1, 0.0, Level.ERROR),
        (61.0, 2.0, Level.OK),
    ],
)
def test_a_difference_is_judged_less_what_asking_took(ahead, within, level):
    reading = ClockReading(ahead_seconds=ahead, within_seconds=within)
    (finding,) = check_clocks({"ClickHouse": reading}, most_seconds=60.0)
    assert finding.level is level
    assert "max_clock_difference" in finding.what
    assert ("behind" in finding.what) == (ahead < 0)


class Server:
    """A clock that is `ahead` of the host's, and takes a second to answer."""

    def __init__(self, host, ahead):
        self.host, self.ahead = host, ahead

    def now(self):
        self.host.time += 0.5
        told = self.host.time + self.ahead
        self.host.time += 0.5
        return told


def test_a_clock_is_read_in_the_middle_of_asking(monkeypatch):
    class Host:
        time = 1000.0

    monkeypatch.setattr(clock_skew, "read_host_clock", lambda: Host.time)
    readings = read_clocks(Server(Host, 3.0), Server(Host, -2.0))
    assert readings == {
        "ClickHouse": ClockReading(ahead_seconds=3.0, within_seconds=0.5),
        "the catalog": ClockReading(ahead_seconds=-2.0, within_seconds=0.5),
    }
