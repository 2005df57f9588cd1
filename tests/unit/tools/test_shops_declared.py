"""The example shops declare what they say: their modules import, and the tables come out as shown here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from oncehouse.errors import ConfigurationError

REPOSITORY = Path(__file__).resolve().parents[3]
EXAMPLES = REPOSITORY / "examples"
SHOW = """
from oncehouse.sync.discovery import find_syncs
from oncehouse.sync.table.ddl import create_table_ddl
for sync in find_syncs({modules}):
    print(create_table_ddl(sync.declaration()), sync.declaration().storage, end="\\n\\n")
"""
UNCHANGED = """
from django.apps import apps
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
loader = MigrationLoader(None)
changes = MigrationAutodetector(loader.project_state(), ProjectState.from_apps(apps)).changes(loader.graph)
assert not changes, changes
"""
TABLES = """\
CREATE TABLE `customers`
(
    `id` {key},
    `name` String,
    `country` LowCardinality(String),
    `_version` UInt64,
    `_deleted` UInt8
)
ENGINE = ReplacingMergeTree(`_version`, `_deleted`)
ORDER BY (`id`) redis

CREATE TABLE `orders`
(
    `id` {key},
    `customer_id` {key},
    `placed_at` DateTime64(6, 'UTC'),
    `status` LowCardinality(String),
    `tags` Array({key}),
    `lines` UInt32,
    `revenue` Decimal(18, 2),
    `_version` UInt64,
    `_deleted` UInt8
)
ENGINE = ReplacingMergeTree(`_version`, `_deleted`)
ORDER BY (`id`) outbox

CREATE TABLE `tags`
(
    `id` {key},
    `name` String,
    `_version` UInt64,
    `_deleted` UInt8
)
ENGINE = ReplacingMergeTree(`_version`, `_deleted`)
ORDER BY (`id`) outbox
"""


def run_in(folder: str, program: str, **environment: str) -> str:
    """In a process of its own: two projects in one would be one too many for Django, and syncs share names."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=EXAMPLES / folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), **environment},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return re.sub(r"\nSETTINGS \S+ = \d+", "", done.stdout).strip() + "\n"


def test_the_django_shop_declares_its_tables_and_its_migrations_are_those_of_its_models():
    shown = run_in("django-shop", SHOW.format(modules=[]) + UNCHANGED, DJANGO_SETTINGS_MODULE="settings")
    assert shown == TABLES.format(key="Int64")


def test_the_sqlalchemy_shop_declares_its_tables():
    assert run_in("sqlalchemy-shop", SHOW.format(modules=["syncs"])) == TABLES.format(key="Int32")


@pytest.fixture
def shops(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import shops

    yield shops
    sys.modules.pop("shops", None)


DAY, OTHER = date(2026, 3, 2), date(2026, 3, 3)
ROWS = [(DAY, 5, Decimal("1234.50")), (OTHER, 1, Decimal("0.99"))]


def test_equal_answers_stand_beside_each_other(shops):
    assert shops.count_differences(ROWS, list(reversed(ROWS))) == 0
    assert shops.compare_answers(["day", "orders", "revenue"], ROWS, ROWS) == [
        "            ClickHouse        PostgreSQL",
        "day         orders   revenue  orders   revenue",
        "2026-03-02       5  1,234.50       5  1,234.50",
        "2026-03-03       1      0.99       1      0.99",
    ]


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (ROWS[:1], "2026-03-03       1      0.99       -         -  <- differs"),
        (
            [ROWS[0], (OTHER, 1, Decimal("1.00"))],
            "2026-03-03       1      0.99       1      1.00  <- differs",
        ),
        (
            [ROWS[0], (OTHER, 2, Decimal("0.99"))],
            "2026-03-03       1      0.99       2      0.99  <- differs",
        ),
    ],
)
def test_a_row_that_is_lost_or_wrong_is_noticed_and_marked(shops, there, told):
    assert shops.count_differences(ROWS, there) == 1
    assert told in shops.compare_answers(["day", "orders", "revenue"], ROWS, there)


def test_a_package_that_is_missing_is_named_with_what_installs_it(shops):
    shop = shops.Shop(
        folder=EXAMPLES, prepare=(), sync=(), traffic=(), status=(), packages=("django", "no_such_package")
    )
    with pytest.raises(ConfigurationError, match=r"^no_such_package cannot be imported by .*`make shops`"):
        shops.check_packages(shop)
