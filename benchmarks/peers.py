"""The same topic by what people use today, in the run of the pipeline (end_to_end.py); and each killed half-way.

Every peer inserts into a table of its own with the same columns. Time is taken from its first poll to the end of its
last insert, by ClickHouse's query log; the start of its process is left out, and Spark's streams are warmed by another
topic. Then each is started anew, killed with -9 when half of the events are in its table, and started again: `lost` are
events that are not in the table, `doubled` rows beyond one for each event, and those of them that were not sent twice
are `by the kill`. That is played on a topic of KILL_EVENTS, where the first is longer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from figures import Figure, figure, rate
from measure import Place, Topic, fill_topic, read_inserts, require_logged
from peer_runs import Found, OwnCommand, Peer, PeerCommand, count, own_in_pieces, run_killed
from plots import draw_bars

KILL_EVENTS = 3_000_000
"""So many have a half-way for all of them."""

OURS = "oncehouse"
PEERS = (
    Peer(
        name="spark_state",
        label="Spark, dropDuplicatesWithinWatermark",
        program="peer_spark.py",
        tuned=False,
        dedups=True,
    ),
    Peer(
        name="spark_tuned",
        label="Spark, the same, rows of state not counted",
        program="peer_spark.py",
        dedups=True,
    ),
    Peer(
        name="plain_default",
        label="plain consumer, decoded, default fetch",
        program="peer_plain.py",
        environment="peers",
        tuned=False,
    ),
    Peer(
        name="plain_tuned",
        label="plain consumer, decoded, tuned fetch",
        program="peer_plain.py",
        environment="peers",
    ),
    Peer(
        name="raw_default",
        label="plain consumer, raw bytes, default fetch",
        program="peer_plain.py",
        environment="peers",
        tuned=False,
        raw=True,
    ),
    Peer(
        name="raw_tuned",
        label="plain consumer, raw bytes, tuned fetch",
        program="peer_plain.py",
        environment="peers",
        raw=True,
    ),
    Peer(name="arroyo", label="arroyo, batching", program="peer_arroyo.py", environment="peers"),
    Peer(
        name="quixstreams",
        label="Quix Streams, batching sink",
        program="peer_quixstreams.py",
        environment="peer-quixstreams",
    ),
)
NAMES = tuple(peer.name for peer in PEERS)
RATIOS = {
    "ratio_to_spark_state": "spark_state",
    "ratio_to_spark_tuned": "spark_tuned",
    "ratio_to_plain_consumer": "plain_tuned",
    "ratio_to_raw_consumer": "raw_tuned",
}
COMPARED = tuple(RATIOS.values())
# Spark's own takes part in the first turn alone: it takes longer than all the others together.
IN_EVERY_TURN = ("plain_tuned", "raw_tuned")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table."""

    name: str
    label: str
    dedups: bool
    seconds: float
    killed: Killed | None


@dataclass(frozen=True, kw_only=True)
class Killed:
    """What is in the table after a kill half-way through a topic."""

    lost: int
    doubled: int
    by_the_kill: int


def count_kill_losses(found: Found, topic: Topic, *, dedups: bool) -> Killed:
    sent_twice = 0 if dedups else topic.produced - topic.unique
    return Killed(
        lost=topic.unique - found.distinct, doubled=found.doubled, by_the_kill=found.doubled - sent_twice
    )


def describe_dedup(name: str, *, dedups: bool) -> str:
    return "exact" if name == OURS else "watermark" if dedups else "none"


def named(name: str) -> Peer:
    return next(peer for peer in PEERS if peer.name == name)


def run_calm(place: Place, peer: Peer, topic: Topic, warm: Topic, *, turn: int = 0) -> float:
    """Seconds from its first poll to the end of its last insert."""
    place.say(f"{peer.label}, load average {os.getloadavg()[0]:.1f}")
    command = PeerCommand(place, peer, topic, f"calm_{peer.name}_{turn}", warm)
    os.sync()
    with command.start() as process:
        command.wait(process)
    inserts = read_inserts(place.client, command.table)
    found = count(place, command.table)
    expected = topic.unique if peer.dedups else topic.produced
    if (found.rows, found.distinct) != (expected, topic.unique):
        raise SystemExit(f"No figures: {peer.label} left {found} of {expected} rows in {command.table}")
    require_logged(inserts, expected)
    for table in (command.table, f"{command.table}_warm"):
        place.client.command(f"DROP TABLE IF EXISTS {table} SYNC")
    seconds = inserts.last_finished_at - command.read_started_at()
    place.say(f"{peer.label}: {topic.produced / seconds:,.0f} events/s")
    return seconds


def compare(
    place: Place,
    topic: Topic,
    warm: Topic,
    *,
    taken: Mapping[str, float],
    names: Sequence[str] = NAMES,
    kills: bool = True,
) -> list[Line]:
    """The table, beginning with ourselves; `taken` are the seconds of those that have been run on the topic already."""
    is_long = kills and topic.produced > KILL_EVENTS
    short = fill_topic(place, "short", KILL_EVENTS) if is_long else topic

    def kill(command: PeerCommand | OwnCommand, *, dedups: bool) -> Killed | None:
        if not kills:
            return None
        found = run_killed(place, command)
        place.client.command(f"DROP TABLE {command.table} SYNC")
        return count_kill_losses(found, short, dedups=dedups)

    ours = kill(own_in_pieces(place, short, f"killed_{OURS}"), dedups=True)
    lines = [Line(name=OURS, label=OURS, dedups=True, seconds=taken[OURS], killed=ours)]
    for peer in (peer for peer in PEERS if peer.name in names):
        seconds = taken[peer.name] if peer.name in taken else run_calm(place, peer, topic, warm)
        killed = kill(PeerCommand(place, peer, short, f"killed_{peer.name}"), dedups=peer.dedups)
        lines.append(
            Line(name=peer.name, label=peer.label, dedups=peer.dedups, seconds=seconds, killed=killed)
        )
    return lines


def lay_out(lines: Sequence[Line], topic: Topic) -> list[str]:
    headings = ("events/s", "ours is", "dedup", "lost", "doubled", "by the kill")
    table = [f"{'':<42}" + "".join(f"{heading:>12}" for heading in headings)]
    ours = lines[0].seconds
    for line in lines:
        cells = [
            f"{topic.produced / line.seconds:,.0f}",
            f"x{line.seconds / ours:.2f}",
            describe_dedup(line.name, dedups=line.dedups),
        ]
        if line.killed is not None:
            cells += [
                f"{line.killed.lost:,}",
                f"{line.killed.doubled:,}",
                f"{line.killed.by_the_kill:,}",
            ]
        table.append(f"{line.label:<42}" + "".join(f"{cell:>12}" for cell in cells))
    return table


def make_figures(lines: Sequence[Line], topic: Topic) -> list[Figure]:
    """The ratios that the comparison is for, and what they are made of."""
    seconds = {line.name: line.seconds for line in lines}
    figures = [
        figure(name, seconds[peer] / seconds[OURS], "1") for name, peer in RATIOS.items() if peer in seconds
    ]
    for line in lines:
        if line.name != OURS:
            figures.append(rate(f"{line.name}_events_per_s", topic.produced, line.seconds))
        if line.killed is not None:
            figures += [
                figure(f"{line.name}_lost_by_kill", line.killed.lost, "events"),
                figure(f"{line.name}_doubled_by_kill", line.killed.by_the_kill, "rows"),
            ]
    return figures


def draw(lines: Sequence[Line], topic: Topic) -> None:
    draw_bars(
        "bench-peers",
        title=f"events a second into ClickHouse: {topic.kind.label}, {topic.produced:,} events",
        values={
            f"{line.label}{'' if line.dedups else ' (no deduplication)'}": topic.produced / line.seconds
            for line in lines
        },
    )


def report(lines: Sequence[Line], topic: Topic) -> list[Figure]:
    print("\n".join(lay_out(lines, topic)))
    draw(lines, topic)
    return make_figures(lines, topic)
