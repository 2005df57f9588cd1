"""The Django shop from one command: `python run.py`.

Starts PostgreSQL, Redis and ClickHouse, migrates, runs `traffic` beside `clickhouse_sync`, and shows the dashboard from
ClickHouse beside the same figures from PostgreSQL. Exit 0 only when they are equal.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from oncehouse.devstack.subprocesses import ONCEHOUSE  # noqa: E402
from shops import Shop, main  # noqa: E402 - it stands beside this folder

MANAGE = (sys.executable, "manage.py")
SHOP = Shop(
    folder=HERE,
    prepare=((*MANAGE, "migrate", "--verbosity", "0"),),
    sync=(*MANAGE, "clickhouse_sync"),
    traffic=(*MANAGE, "traffic"),
    status=(*ONCEHOUSE, "sync", "status", "--json"),
    packages=("django", "redis"),
    environment={"DJANGO_SETTINGS_MODULE": "settings"},
)

if __name__ == "__main__":
    sys.exit(main(SHOP))
