"""The books of a shop in words that Django's and SQLAlchemy's models share, for the contract suite of model sync.

People have orders, orders have tags and lines, a gift is an order with a greeting. A method is the framework's
usual way to make that change; outside of `transaction` each commits by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from sqlalchemy import Engine

from oncehouse.sync.changes.change import Operation, format_key
from oncehouse.sync.model.model_sync import ModelSync

Operations = list[tuple[str, str]]
"""Kind and key."""


class GivenUpError(Exception):
    """Raised to have a transaction or a savepoint rolled back."""


class Books(Protocol):
    people: type[ModelSync]
    orders: type[ModelSync]
    gifts: type[ModelSync]

    @property
    def engine(self) -> Engine: ...
    def transaction(self) -> Any: ...
    def savepoint(self) -> Any: ...

    def add_person(self, name: str, key: Any = None) -> Any: ...
    def add_people(self, names: Sequence[str]) -> list[Any]: ...
    def rename(self, key: Any, name: str) -> None: ...
    def rename_all(self, names: dict[Any, str]) -> None: ...
    def remove_person(self, key: Any) -> None: ...
    def honour(self, names: Sequence[str]) -> int: ...
    def remove_named(self, names: Sequence[str]) -> int: ...
    def move_key(self, old: Any, new: Any) -> None: ...
    def rename_raw(self, key: Any, name: str) -> None: ...

    def add_order(self, person: Any) -> Any: ...
    def add_gift(self, person: Any) -> Any: ...
    def annotate(self, order: Any, note: str) -> None: ...
    def add_tag(self) -> Any: ...
    def tag(self, order: Any, tags: Sequence[Any]) -> None: ...
    def add_line(self, order: Any, amount: int) -> Any: ...
    def move_line(self, line: Any, order: Any) -> None: ...
    def move_lines(self, amount: int, order: Any) -> None: ...
    def move_lines_of(self, note: str, order: Any) -> None: ...

    def before_lines_move(self, act: Callable[[], None]) -> Any:
        """Within the block, call it once just before rows of lines are updated."""
        ...

    def assert_equal(self) -> None: ...


def key(*values: Any) -> str:
    return format_key(values)


class Told:
    """What was told of changes since one looked last, sorted: which connection took which number tells nothing."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._seen: set[str] = set()
        self.skip()

    def __call__(self, sync: type[ModelSync]) -> Operations:
        new = [one for one in list_waiting(self._books, sync) if one.id not in self._seen]
        self._seen |= {one.id for one in new}
        return sorted((one.kind.value, one.key) for one in new)

    def skip(self) -> None:
        for sync in syncs_of(self._books):
            self(sync)


def syncs_of(books: Books) -> tuple[type[ModelSync], ...]:
    return (books.people, books.orders, books.gifts)


def list_waiting(books: Books, sync: type[ModelSync]) -> list[Operation]:
    with books.engine.begin() as connection:
        return sync.get_storage().list_operations(connection, sync.declaration().name, 1_000)


def settle(books: Books) -> None:
    """Sync what waits; then `FINAL` shows what the database has."""
    for sync in syncs_of(books):
        if list_waiting(books, sync):
            sync.sync_batch_from_storage()
    books.assert_equal()


def do_elsewhere(books: Books, act: Callable[[], None]) -> None:
    """On a connection of its own, to its end."""

    def act_alone() -> None:
        try:
            act()
        finally:
            books.people.release_connections()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(act_alone).result()
