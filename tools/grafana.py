"""Writes deploy/grafana/oncehouse.json, the Grafana dashboard, from the rows of panels below.

Run it after a change of these rows: `python tools/grafana.py`. A test compares the file with them, and every
expression with the list of metrics.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "oncehouse.json"
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_PIPELINE = 'pipeline=~"$pipeline"'


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    says: str
    expressions: tuple[tuple[str, str], ...]
    """Expression and legend of each curve."""
    unit: str = "short"
    kind: str = "timeseries"
    alarm_from: float | None = None
    """Red from this value on."""
    stacked: bool = False


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "At a glance",
        (
            Panel(
                title="Lag",
                says="Records in Kafka that no epoch has settled.",
                expressions=((f"sum(oncehouse_lag_records{{{_PIPELINE}}})", ""),),
                kind="stat",
            ),
            Panel(
                title="Oldest row not in ClickHouse",
                says="How long it has waited in the ledger.",
                expressions=((f"max(oncehouse_oldest_waiting_seconds{{{_PIPELINE}}})", ""),),
                unit="s",
                kind="stat",
                alarm_from=900,
            ),
            Panel(
                title="Parked batches",
                says="ClickHouse refused them for good; a person has to look.",
                expressions=((f'sum(oncehouse_batches{{{_PIPELINE}, status="PARKED"}}) or vector(0)', ""),),
                kind="stat",
                alarm_from=1,
            ),
            Panel(
                title="Dead letters",
                says="Records that could not become rows and were not tried again.",
                expressions=((f"sum(oncehouse_dead_letters{{{_PIPELINE}}}) or vector(0)", ""),),
                kind="stat",
                alarm_from=1,
            ),
            Panel(
                title="Stages without a holder",
                says="No process runs them.",
                expressions=((f"count(oncehouse_lease_held{{{_PIPELINE}}} == 0) or vector(0)", ""),),
                kind="stat",
                alarm_from=1,
            ),
            Panel(
                title="Parts that do not answer",
                says="Ledgers, servers and databases that could not be read.",
                expressions=(("count(oncehouse_answers == 0) or vector(0)", ""),),
                kind="stat",
                alarm_from=1,
            ),
        ),
    ),
    (
        "Pipeline",
        (
            Panel(
                title="Records by fate",
                says="What became of records that were read, a second.",
                expressions=(
                    (
                        f"sum by (fate) (rate(oncehouse_records_total{{{_PIPELINE}}}[$__rate_interval]))",
                        "{{fate}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                title="Read and loaded",
                says="Records settled and rows confirmed, a second, over the last minute.",
                expressions=(
                    (f"oncehouse_read_records_per_second{{{_PIPELINE}}}", "{{pipeline}} read"),
                    (f"oncehouse_loaded_rows_per_second{{{_PIPELINE}}}", "{{pipeline}} loaded"),
                ),
            ),
            Panel(
                title="Lag by partition",
                says="A single one that grows is a hot key or a slow broker.",
                expressions=(
                    (f"oncehouse_lag_records{{{_PIPELINE}}}", "{{pipeline}} {{topic}}/{{partition}}"),
                ),
            ),
            Panel(
                title="Waiting for ClickHouse",
                says="Rows of open parts, and of batches that have not arrived.",
                expressions=(
                    (f"oncehouse_open_rows{{{_PIPELINE}}}", "{{table}} not in a batch"),
                    (
                        f'oncehouse_batch_rows{{{_PIPELINE}, status!~"IN_CLICKHOUSE|REPLACED"}}',
                        "{{table}} {{status}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                title="Inserts",
                says="How long an INSERT took, the mean of ten minutes.",
                expressions=((f"oncehouse_insert_seconds{{{_PIPELINE}}}", "{{pipeline}} {{table}}"),),
                unit="s",
            ),
            Panel(
                title="Epochs",
                says="How long the newest epoch took, and phases of Spark's micro-batch.",
                expressions=(
                    (f"oncehouse_last_epoch_seconds{{{_PIPELINE}}}", "{{pipeline}} epoch"),
                    (f"oncehouse_spark_phase_seconds{{{_PIPELINE}}}", "{{pipeline}} {{phase}}"),
                ),
                unit="s",
            ),
        ),
    ),
    (
        "The ledger",
        (
            Panel(
                title="Key index",
                says="Keys that are remembered.",
                expressions=((f"oncehouse_index_keys{{{_PIPELINE}}}", "{{pipeline}}"),),
            ),
            Panel(
                title="Backlog",
                says="Files of events that are not in ClickHouse, and the limit at which reading pauses.",
                expressions=(
                    (f"oncehouse_backlog_bytes{{{_PIPELINE}}}", "{{pipeline}}"),
                    (f"oncehouse_backlog_limit_bytes{{{_PIPELINE}}}", "{{pipeline}} limit"),
                ),
                unit="bytes",
            ),
            Panel(
                title="Free disk",
                says="And what has to stay free.",
                expressions=(
                    (f"oncehouse_disk_free_bytes{{{_PIPELINE}}}", "{{pipeline}} {{holds}}"),
                    (f"oncehouse_disk_kept_free_bytes{{{_PIPELINE}}}", "{{pipeline}} {{holds}}, kept free"),
                ),
                unit="bytes",
            ),
            Panel(
                title="Fencing tokens",
                says="Each step is a start or a takeover of a stage.",
                expressions=((f"oncehouse_lease_token{{{_PIPELINE}}}", "{{pipeline}} {{stage}}"),),
            ),
        ),
    ),
    (
        "Facts, messages and models",
        (
            Panel(
                title="Facts behind their sources",
                says="How far the newest row of a source is ahead.",
                expressions=(("max by (topic) (oncehouse_etl_lag_seconds)", "{{topic}}"),),
                unit="s",
            ),
            Panel(
                title="Outbox",
                says="Messages that wait and messages that are parked.",
                expressions=(
                    ("oncehouse_outbox_waiting", "{{table}} waiting"),
                    ("oncehouse_outbox_parked", "{{table}} parked"),
                ),
            ),
            Panel(
                title="Consumer groups",
                says="Records behind what the group has committed.",
                expressions=(("sum by (group) (oncehouse_consumer_lag_records)", "{{group}}"),),
            ),
            Panel(
                title="Model sync",
                says="How long the oldest change has waited.",
                expressions=(("oncehouse_sync_lag_seconds", "{{sync}}"),),
                unit="s",
            ),
        ),
    ),
)


def write_dashboard() -> str:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append(
            _place({"type": "row", "title": title, "collapsed": False, "panels": []}, 0, top, 24, 1)
        )
        top += 1
        height = 4 if row[0].kind == "stat" else 8
        width = 24 // (6 if row[0].kind == "stat" else 2 if len(row) == 4 else 3)
        for at, panel in enumerate(row):
            left, line = at * width % 24, at * width // 24
            panels.append(_place(_panel(panel), left, top + line * height, width, height))
        top += height * -(-len(row) * width // 24)
    for number, made in enumerate(panels, start=1):
        made["id"] = number
    return json.dumps({**_DASHBOARD, "panels": panels}, indent=2) + "\n"


def _place(made: dict[str, Any], left: int, top: int, width: int, height: int) -> dict[str, Any]:
    return {**made, "gridPos": {"x": left, "y": top, "w": width, "h": height}}


def _panel(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.alarm_from is not None:
        steps.append({"color": "red", "value": panel.alarm_from})
    custom = {"fillOpacity": 20 if panel.stacked else 5, "showPoints": "never"}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": _SOURCE,
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend, "datasource": _SOURCE}
            for at, (expression, legend) in enumerate(panel.expressions)
        ],
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "thresholds": {"mode": "absolute", "steps": steps},
                **({"custom": custom} if panel.kind == "timeseries" else {}),
            },
            "overrides": [],
        },
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}}
        if panel.kind == "stat"
        else {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    }


_DASHBOARD = {
    "title": "oncehouse",
    "uid": "oncehouse",
    "tags": ["oncehouse", "clickhouse", "kafka"],
    "schemaVersion": 39,
    "editable": True,
    "refresh": "30s",
    "time": {"from": "now-6h", "to": "now"},
    "templating": {
        "list": [
            {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
            {
                "name": "pipeline",
                "label": "Pipeline",
                "type": "query",
                "datasource": _SOURCE,
                "query": {"query": "label_values(oncehouse_epochs_total, pipeline)", "refId": "pipelines"},
                "refresh": 2,
                "multi": True,
                "includeAll": True,
                "current": {"text": "All", "value": "$__all"},
            },
        ]
    },
}


if __name__ == "__main__":
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(write_dashboard(), encoding="utf-8")
    print(f"wrote {FILE.relative_to(Path.cwd()) if FILE.is_relative_to(Path.cwd()) else FILE}")
