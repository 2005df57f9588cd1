"""The SQLAlchemy shop from one command: `python run.py`.

Starts PostgreSQL, Redis and ClickHouse, makes the tables, runs `traffic.py` beside `oncehouse sync run`, and shows the
dashboard from ClickHouse beside the same figures from PostgreSQL. Exit 0 only when they are equal.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from oncehouse.devstack.subprocesses import ONCEHOUSE  # noqa: E402
from shops import Shop, main  # noqa: E402 - it stands beside this folder

SYNC = (*ONCEHOUSE, "sync")
SYNCS = ("--module", "syncs")
SHOP = Shop(
    folder=HERE,
    prepare=(
        (sys.executable, "models.py"),
        (*SYNC, "init", *SYNCS, "--yes"),
        (*SYNC, "apply", *SYNCS),
    ),
    sync=(*SYNC, "run", *SYNCS),
    traffic=(sys.executable, "traffic.py"),
    status=(*SYNC, "status", *SYNCS, "--json"),
    packages=("redis",),
)

if __name__ == "__main__":
    sys.exit(main(SHOP))
