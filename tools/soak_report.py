"""What a soak tells: a table for people, a file for programs, and a plot of memory and open files."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from soak_bounds import Evaluation, Phases, Sample
from soak_cast import Ended
from soak_oracle import Delivered, Produced

_FILE_COLOURS = "tab20"


@dataclass(frozen=True, kw_only=True)
class KillNote:
    """One kill as it happened."""

    seconds: float
    kind: str
    part: str
    pid: int
    token: int
    """Of the ingest lease at that moment."""
    epochs: int
    """Registered under that token before the kill."""


@dataclass(frozen=True, kw_only=True)
class LedgerSize:
    seconds: float
    catalog_rows: int
    ledger_files: int
    epochs: int


@dataclass(kw_only=True)
class Story:
    """All that was seen; `problems` is empty when the soak has gone well."""

    seed: int
    phases: Phases | None = None
    kills: list[KillNote] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    sizes: list[LedgerSize] = field(default_factory=list)
    backlog: list[tuple[float, int]] = field(default_factory=list)
    produced: Produced | None = None
    delivered: Delivered | None = None
    judgements: tuple[Evaluation, ...] = ()
    verified: bool = False
    minutes: float = 0.0
    events_per_second: float = 0.0
    dry_share: float = 0.0
    """How much of the time there was nothing to read."""
    disk_gigabytes: float = 0.0
    load_averages: list[float] = field(default_factory=list)
    """Of the machine, one at each look: rates of a busy one say little."""
    problems: list[str] = field(default_factory=list)

    @property
    def load_average(self) -> float:
        return sum(self.load_averages) / max(1, len(self.load_averages))

    @property
    def kills_by_kind(self) -> dict[str, int]:
        return dict(sorted(Counter(kill.kind for kill in self.kills).items()))


def lines(story: Story) -> list[str]:
    """The table: one `name number` a line, then a line a kind of process."""
    produced, delivered = story.produced, story.delivered
    told: list[tuple[str, object]] = [
        ("seed", story.seed),
        ("minutes of kills", f"{story.minutes:.1f}"),
        *((f"kills: {kind}", count) for kind, count in story.kills_by_kind.items()),
        ("ended by themselves", len(story.ended)),
        ("events/s", f"{story.events_per_second:.0f}"),
        ("share of time without backlog", f"{story.dry_share:.3f}"),
        ("load average of the machine", f"{story.load_average:.1f}"),
        ("most disk, GB", f"{story.disk_gigabytes:.1f}"),
    ]
    if produced is not None:
        told += [
            ("produced", produced.records),
            ("unique", produced.unique),
            ("duplicates", produced.duplicates),
            ("dead letters", produced.broken),
        ]
    if delivered is not None:
        told += [
            ("rows in ClickHouse", delivered.rows),
            ("verify", "ok" if story.verified else "failed"),
            ("lost", delivered.lost),
            ("doubled", delivered.doubled),
        ]
    return [
        *(f"{name:<32}{value!s:>14}" for name, value in told),
        "",
        *_table_of_kinds(story.judgements),
        *(f"ended by itself: {one.kind}, exit {one.code}: {one.last_line[:160]}" for one in story.ended),
        *(f"PROBLEM {problem}" for problem in story.problems),
    ]


def _table_of_kinds(judgements: Sequence[Evaluation]) -> list[str]:
    headings = ("most", "bound", "middle", "last", "calm middle", "calm last")
    table = [f"{'kind':<16}{'measure':<11}{'lives':>6}" + "".join(f"{name:>13}" for name in headings)]
    for one in judgements:
        grown = [
            f"{value:.0f}"
            for growth in (one.between_lives, one.within_life)
            for value in ((growth.middle, growth.last) if growth else (float("nan"),) * 2)
        ]
        cells = [f"{one.most:.0f}", f"{one.ceiling:.0f}", *grown]
        table.append(
            f"{one.kind:<16}{one.measure:<11}{one.processes:>6}" + "".join(f"{cell:>13}" for cell in cells)
        )
    return table


def write_json(story: Story, file: Path) -> None:
    produced, delivered = story.produced, story.delivered
    told: dict[str, Any] = {
        "seed": story.seed,
        "minutes": round(story.minutes, 2),
        "kills": story.kills_by_kind,
        "least_epochs_before_a_driver_kill": min(
            (kill.epochs for kill in story.kills if kill.kind == "driver"), default=0
        ),
        "events": asdict(produced) | {"duplicates": produced.duplicates} if produced else None,
        "events_per_second": round(story.events_per_second),
        "load_average": round(story.load_average, 1),
        "share_of_time_without_backlog": round(story.dry_share, 4),
        "delivered": asdict(delivered) if delivered else None,
        "lost": delivered.lost if delivered else None,
        "doubled": delivered.doubled if delivered else None,
        "verified": story.verified,
        "processes": [asdict(one) for one in story.judgements],
        "ledger": [asdict(size) for size in story.sizes],
        "ended_by_themselves": [asdict(one) for one in story.ended],
        "kill_log": [asdict(kill) for kill in story.kills],
        "problems": story.problems,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(told, indent=2) + "\n")


def draw(story: Story, samples: Sequence[Sample], files: Sequence[Path]) -> None:
    """Memory and open files of the largest process of each kind, the ledger's size, and every kill."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(3, 1, figsize=(13, 12), sharex=True, layout="constrained")
    by_kind: dict[str, dict[float, tuple[float, int]]] = defaultdict(dict)
    for one in samples:
        megabytes, open_files = by_kind[one.kind].get(one.seconds, (0.0, 0))
        by_kind[one.kind][one.seconds] = (max(megabytes, one.megabytes), max(open_files, one.files))
    colours = mpl.colormaps[_FILE_COLOURS]
    for number, (kind, points) in enumerate(sorted(by_kind.items())):
        minutes = [seconds / 60 for seconds in points]
        for panel, index in ((panels[0], 0), (panels[1], 1)):
            values = [point[index] for point in points.values()]
            panel.plot(minutes, values, color=colours(number), linewidth=1.1, label=kind)
    _draw_ledger(panels[2], story)
    for panel, title in zip(
        panels,
        ("resident memory of the largest process of a kind, MB", "open files of it", "rows, files, epochs"),
        strict=True,
    ):
        panel.set_title(title)
        panel.set_ylim(bottom=0)
        _mark_kills(panel, story)
        panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    panels[-1].set_xlabel("minutes; grey lines are kills, red ones kills of the driver, the calm is shaded")
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=100, metadata={"Software": None})
    plt.close(figure)


def _draw_ledger(panel: Any, story: Story) -> None:
    minutes = [size.seconds / 60 for size in story.sizes]
    panel.plot(minutes, [size.catalog_rows for size in story.sizes], label="rows of the catalog")
    panel.plot(minutes, [size.ledger_files for size in story.sizes], label="files of the ledger")
    panel.plot(minutes, [size.epochs for size in story.sizes], label="epochs")


def _mark_kills(panel: Any, story: Story) -> None:
    for kill in story.kills:
        colour = "tab:red" if kill.kind == "driver" else "lightgrey"
        panel.axvline(kill.seconds / 60, color=colour, linewidth=0.5, zorder=0)
    if story.phases is not None:
        panel.axvspan(story.phases.calm_from / 60, story.phases.calm_until / 60, color="honeydew", zorder=-1)
