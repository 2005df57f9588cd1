"""What it costs to fill in a template of the user's own, in processor time: parse, check, render, split."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.lineage.user_templates import render_template

REPEATS = 200
TEXT = """\
CREATE TABLE IF NOT EXISTS {{ (dst ~ '_keys') | table }} (id UInt64) ENGINE = MergeTree ORDER BY id;
TRUNCATE TABLE {{ (dst ~ '_keys') | table }};
INSERT INTO {{ (dst ~ '_keys') | table }} SELECT id FROM {{ source | table }} WHERE {{ in_range() }};
SELECT {{ parameters.columns | identifier }} FROM {{ source | table }} WHERE {{ in_range() }}
{% for column in parameters.columns %} AND isNotNull({{ column | identifier }}){% endfor %}
AND quantity >= {{ parameters.at_least }}
"""
TOPIC = Topic(
    topic="Bench",
    dst="dwh.bench",
    depends_on=("stage.bench",),
    parameters=(("columns", ("id", "pos", "quantity")), ("at_least", 8)),
)


def main() -> None:
    seconds: list[float] = []
    with tempfile.TemporaryDirectory(prefix="oncehouse-bench-templates-") as folder:
        file = Path(folder) / "bench.sql.j2"
        file.write_text(TEXT)
        for _ in range(REPEATS):
            started = time.process_time()
            render_template(TOPIC, file, transform=None)
            seconds.append(time.process_time() - started)
    print(f"{'etl_template_ms':32} {statistics.median(seconds) * 1000:>10.2f} ms")


if __name__ == "__main__":
    main()
