"""Classes of syncs that a test changes, here and in the processes that it starts, for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from oncehouse.sync.model.engines import Append, Collapsing
from oncehouse.sync.model.model_sync import ModelSync
from oncehouse.sync.table.ddl import apply_plan, plan_table

Attributes = Mapping[str, Any]

ENGINES = {"collapsing": Collapsing(), "append": Append()}
"""As JSON calls them."""


def change(sync: type[ModelSync], attributes: Attributes) -> None:
    for name, value in attributes.items():
        setattr(sync, name, ENGINES[value] if name == "engine" and isinstance(value, str) else value)
    sync.forget()


def make_tables(*syncs: type[ModelSync]) -> None:
    for sync in syncs:
        apply_plan(sync.open_clickhouse(), plan_table(sync.open_clickhouse(), sync.declaration()))


@contextmanager
def changed(changes: Mapping[type[ModelSync], Attributes]) -> Iterator[None]:
    """Within the block these classes have other attributes, and empty tables in ClickHouse that fit them."""
    before = {sync: {name: getattr(sync, name) for name in given} for sync, given in changes.items()}
    try:
        for sync, given in changes.items():
            sync.open_clickhouse().command(f"DROP TABLE IF EXISTS {sync.declaration().table} SYNC")
            change(sync, given)
            make_tables(sync)
        yield
    finally:
        for sync, given in before.items():
            change(sync, given)
