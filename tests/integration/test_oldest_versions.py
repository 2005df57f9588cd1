"""The oldest versions of the frameworks that model sync supports; `make versions` tries all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_model_sync_keeps_its_promises_with_the_oldest_django_and_sqlalchemy(stack, postgres, clickhouse):
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "versions.py"), "--oldest"],
        env={**os.environ, "ONCEHOUSE_TESTS_STACK": str(stack.folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
