"""Whether memory and open files stay bounded: pure, from samples of processes to a judgement of each kind.

Three rules, none of them by eye:

- ceiling: no process of a kind is ever larger than the bound that is stated for the kind;
- between lives: while processes are killed, the median size of a kind in the last third of that time is at most
  its `growth` times the one in the middle third, and a slack. Kills come at the same pace in both, so ages are alike;
- within a life: in the calm at the end, where nobody is killed and the load goes on, the same between the last and
  the middle third.

The heap of a Java process is given to it beforehand, and what it has touched of it once it does not give back: its
memory below the heap's size is not growth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

SLACK_MB = 32.0
SLACK_FILES = 8.0
# Fewer samples than this in a third of the time say nothing.
_LEAST_SAMPLES = 5


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One process at one moment."""

    seconds: float
    kind: str
    pid: int
    age_seconds: float
    megabytes: float
    files: int


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What is allowed to a kind."""

    megabytes: float
    files: float
    heap_megabytes: float = 0.0
    """Of a Java process; 0 for others."""
    growth: float = 1.1


@dataclass(frozen=True, kw_only=True)
class Phases:
    """When things were killed, and when it was calm, with all that was killed last back; in seconds of the run."""

    kills_from: float
    kills_until: float
    calm_from: float
    calm_until: float


@dataclass(frozen=True)
class Allowed:
    """How much more than before a median may be; below `given` nothing is growth."""

    factor: float
    slack: float
    given: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Growth:
    middle: float
    last: float
    slope_per_hour: float
    is_bounded: bool


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One kind, one measure."""

    kind: str
    measure: str
    processes: int
    most: float
    ceiling: float
    between_lives: Growth | None
    within_life: Growth | None

    @property
    def problems(self) -> tuple[str, ...]:
        found = []
        if self.most > self.ceiling:
            found.append(f"{self.kind}: {self.measure} reached {self.most:.0f}, above {self.ceiling:.0f}")
        for name, growth in (("while killed", self.between_lives), ("in the calm", self.within_life)):
            if growth is not None and not growth.is_bounded:
                found.append(
                    f"{self.kind}: {self.measure} grew {name} from {growth.middle:.0f} to {growth.last:.0f} "
                    f"({growth.slope_per_hour:+.0f} an hour)"
                )
        return tuple(found)


def evaluate(
    samples: Iterable[Sample], bounds: Mapping[str, Bound], phases: Phases
) -> tuple[Evaluation, ...]:
    """Memory and open files of every kind that was seen; a kind without a stated bound is a mistake."""
    by_kind: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_kind[sample.kind].append(sample)
    found = []
    for kind, seen in sorted(by_kind.items()):
        bound = bounds[kind]
        memory = [(one.seconds, one.megabytes) for one in seen]
        files = [(one.seconds, float(one.files)) for one in seen]
        processes = len({one.pid for one in seen})
        for measure, points, ceiling, allowed in (
            ("megabytes", memory, bound.megabytes, Allowed(bound.growth, SLACK_MB, bound.heap_megabytes)),
            ("files", files, bound.files, Allowed(bound.growth, SLACK_FILES)),
        ):
            found.append(
                Evaluation(
                    kind=kind,
                    measure=measure,
                    processes=processes,
                    most=max(value for _, value in points),
                    ceiling=ceiling,
                    between_lives=grow(points, phases.kills_from, phases.kills_until, allowed),
                    within_life=grow(points, phases.calm_from, phases.calm_until, allowed),
                )
            )
    return tuple(found)


def grow(points: Sequence[tuple[float, float]], start: float, end: float, allowed: Allowed) -> Growth | None:
    """The middle third of the time against the last one; None where there is too little to compare."""
    third = (end - start) / 3
    middle = [value for at, value in points if start + third <= at < start + 2 * third]
    last = [value for at, value in points if start + 2 * third <= at <= end]
    if min(len(middle), len(last)) < _LEAST_SAMPLES:
        return None
    before, after = median(middle), median(last)
    return Growth(
        middle=before,
        last=after,
        slope_per_hour=(after - before) / third * 3600,
        is_bounded=after <= allowed.factor * max(before, allowed.given) + allowed.slack,
    )
