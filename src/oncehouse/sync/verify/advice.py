"""The report of a comparison: a few keys of each kind of difference, and what to do. Pure."""

from __future__ import annotations

from oncehouse.sync.verify.verify import Difference, SyncVerifyReport

EXAMPLES = 5


def describe_differences(report: SyncVerifyReport) -> list[str]:
    """A line for each kind that was found, then advice."""
    lines = [
        f"{kind}: {', '.join(keys[:EXAMPLES])}{', …' if len(keys) > EXAMPLES else ''}"
        for kind, keys in report.differences.items()
        if keys
    ]
    return [f"{report.sync}: {line}" for line in (*lines, *advise(report))]


def advise(report: SyncVerifyReport) -> list[str]:
    advice = []
    if report.pipeline_file and not report.is_clean:
        behind = f"`oncehouse status {report.pipeline_file}`, `oncehouse cdc status`"
        list_command = f"`oncehouse dead-letters list {report.pipeline_file}`"
        return [f"the pipeline may be behind ({behind}) or have dead letters ({list_command})"]
    if not report.complete:
        advice.append(
            "so many differ that the rest was not looked at. `oncehouse sync backfill` sends all rows; verify then"
        )
    elif report.keys_to_repair():
        advice.append("`oncehouse sync verify --repair` syncs these keys again")
    if report.differences[Difference.DOUBLED]:
        advice.append(
            "doubled rows cannot be taken back by syncing; `OPTIMIZE TABLE … FINAL DEDUPLICATE` does it for equal ones"
        )
    if report.waiting:
        advice.append(
            f"{report.waiting:,} keys differ whose operations still wait; `oncehouse sync run` syncs them"
        )
    if report.changing:
        advice.append(f"{report.changing:,} keys changed at every look and were not judged")
    return advice
