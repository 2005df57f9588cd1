"""Plots of the benchmarks, each as PNG and SVG in build/. The same figures make the same file: no dates inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path("build")

Points = Sequence[tuple[float, float]]


def draw_bars(name: str, *, title: str, values: Mapping[str, float], folder: Path = FOLDER) -> list[Path]:
    """One horizontal bar a name, the number at its end, the first on top."""
    plt = _pyplot()
    figure, panel = plt.subplots(figsize=(9, 0.9 + 0.38 * len(values)), layout="constrained")
    bars = panel.barh(list(values), list(values.values()), color="tab:blue")
    panel.bar_label(bars, fmt="{:,.0f}", padding=3)
    panel.invert_yaxis()
    panel.margins(x=0.2)
    panel.locator_params(axis="x", nbins=5)
    panel.xaxis.set_major_formatter("{x:,.0f}")
    figure.suptitle(title)
    return _save(figure, name, folder)


def draw_stacks(
    name: str, *, title: str, shares: Mapping[str, Mapping[str, float]], folder: Path = FOLDER
) -> list[Path]:
    """One horizontal bar a name, made of what each part contributes."""
    plt = _pyplot()
    figure, panel = plt.subplots(figsize=(9, 1.2 + 0.5 * len(shares)), layout="constrained")
    parts = list(dict.fromkeys(part for share in shares.values() for part in share))
    left = [0.0] * len(shares)
    for part in parts:
        widths = [share.get(part, 0.0) for share in shares.values()]
        panel.barh(list(shares), widths, left=left, label=part)
        left = [at + width for at, width in zip(left, widths, strict=True)]
    panel.invert_yaxis()
    panel.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle(title)
    return _save(figure, name, folder)


def draw_lines(
    name: str,
    *,
    title: str,
    across: str,
    panels: Mapping[str, Mapping[str, Points]],
    logarithmic: bool = False,
    folder: Path = FOLDER,
) -> list[Path]:
    """Panels side by side, each with its title and its lines; all share what goes across."""
    plt = _pyplot()
    figure, axes = plt.subplots(
        1, len(panels), figsize=(5.2 * len(panels), 3.6), layout="constrained", squeeze=False
    )
    for panel, (heading, lines) in zip(axes[0], panels.items(), strict=True):
        for label, points in lines.items():
            mark = "o" if len(points) < 12 else None
            panel.plot([x for x, _ in points], [y for _, y in points], marker=mark, label=label)
        if logarithmic:
            panel.set_xscale("log")
        panel.set_ylim(bottom=0)
        panel.set_xlabel(across)
        panel.set_title(heading)
        if len(lines) > 1:
            panel.legend(fontsize="small")
    figure.suptitle(title)
    return _save(figure, name, folder)


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "oncehouse"
    from matplotlib import pyplot as plt

    return plt


def _save(figure: Any, name: str, folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.{ending}" for ending in ("png", "svg")]
    for file in files:
        unsaid = {"Date": None, "Creator": None} if file.suffix == ".svg" else {"Software": None}
        figure.savefig(file, dpi=120, metadata=unsaid)
    _pyplot().close(figure)
    return files
