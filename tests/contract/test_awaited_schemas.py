"""What records wait for: each file is read once, in bounded memory, however many schemas records name."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ledger_examples import IDENTITY, make_dead_letters, make_registration, take_lease
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.known_schemas import add_schemas, list_names
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.models import DeadLetterFile, DeadLetterKind, EpochKind, Schema
from oncehouse.ledger.stats import awaited_schemas
from oncehouse.ledger.stats.awaited_schemas import AwaitedSchemas, list_waiting_files


class Entered:
    """Registers epochs with files of waiting records."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._token = take_lease(catalog)
        self._epoch = 0

    def add(self, *files: dict[str, int], tried: tuple[str, ...] = ()) -> tuple[str, ...]:
        self._epoch += 1
        entered = tuple(
            make_waiting(f"{self._epoch}-{at}", self._epoch, schemas) for at, schemas in enumerate(files)
        )
        registration = make_registration(
            self._epoch, 0, 1, kind=EpochKind.WAITING, ranges=(), dead_letter_files=entered
        )
        register(self._catalog, self._token, replace(registration, tried_dead_letter_files=tried))
        return tuple(file.dead_letter_file for file in entered)


def make_waiting(name: str, epoch: int, schemas: dict[str, int]) -> DeadLetterFile:
    made = make_dead_letters(name, epoch=epoch, rows=sum(schemas.values()))
    return replace(made, reasons=schemas, kind=DeadLetterKind.WAITING)


@pytest.fixture
def entered(catalog) -> Entered:
    return Entered(catalog)


@pytest.fixture
def parsed(monkeypatch) -> list[str]:
    """Each text of counts that is parsed."""
    texts: list[str] = []
    monkeypatch.setattr(
        awaited_schemas.json, "loads", lambda text: texts.append(text) or json.JSONDecoder().decode(text)
    )
    return texts


def test_records_are_counted_by_schema_the_most_frequent_first(catalog, catalog_url, entered):
    entered.add({"7": 2, "8": 1}, {"9": 4, "7": 3})
    other = Catalog(catalog_url, "other", retry_seconds=())
    other.adopt(IDENTITY)
    Entered(other).add({"7": 1})
    other.close()
    found = AwaitedSchemas().read(catalog)
    assert (list(found.schemas.items()), found.others) == ([("7", 5), ("9", 4), ("8", 1)], 0)
    top = found.top(1)
    assert (top.schemas, top.others) == ({"7": 5}, 5)


def test_nothing_waits_in_an_empty_ledger(catalog):
    found = AwaitedSchemas().read(catalog)
    assert (found.schemas, found.others, found.oldest, found.is_readable) == ({}, 0, None, False)


def test_a_file_is_read_once_however_often_is_asked(catalog, entered, parsed):
    awaited = AwaitedSchemas()
    entered.add(*({str(number): 1} for number in range(40)))
    for _ in range(5):
        assert len(awaited.read(catalog).schemas) == 40
    assert len(parsed) == 40
    entered.add({"40": 1})
    assert len(awaited.read(catalog).schemas) == 41
    assert len(parsed) == 41


def test_files_that_were_tried_are_counted_no_more(catalog, entered):
    awaited = AwaitedSchemas()
    first, second = entered.add({"7": 2}, {"8": 1})
    assert awaited.read(catalog).schemas == {"7": 2, "8": 1}
    entered.add(tried=(first,))
    assert awaited.read(catalog).schemas == {"8": 1}
    entered.add({"8": 1, "9": 1}, tried=(second,))
    assert awaited.read(catalog).schemas == {"8": 1, "9": 1}
    (third,) = entered.add({"7": 1})
    entered.add({"7": 1}, tried=(third,))
    assert awaited.read(catalog).schemas == {"8": 1, "9": 1, "7": 1}


def test_many_names_are_held_in_bounded_memory_and_all_records_are_counted(catalog, entered, monkeypatch):
    monkeypatch.setattr(awaited_schemas, "_MOST_NAMES", 50)
    awaited = AwaitedSchemas()
    for start in range(0, 5000, 500):
        # As older versions wrote them: a name for each record of a file.
        entered.add({"real": 2, **{str(number): 1 for number in range(start, start + 500)}})
        found = awaited.read(catalog)
        assert len(awaited._counts) <= 100
        assert len(found.schemas) == 50
        assert next(iter(found.schemas)) == "real"
    assert found.schemas["real"] == 20
    assert sum(found.schemas.values()) + found.others == 5020


def test_a_known_schema_is_noticed_also_behind_thousands_of_others(catalog, entered, monkeypatch, parsed):
    monkeypatch.setattr(awaited_schemas, "_MOST_NAMES", 5)
    awaited = AwaitedSchemas()
    entered.add({str(number): 2 for number in range(100)}, {"real": 1})
    assert not awaited.read(catalog, known=frozenset({"x"})).is_readable
    known = frozenset({"x", "real"})
    assert awaited.read(catalog, known=known).is_readable
    del parsed[:]
    assert awaited.read(catalog, known=known).is_readable
    assert not parsed
    (found,) = list_waiting_files(catalog, known=known, before=None)
    assert (found.rows, found.reasons) == (1, {})


def test_files_are_listed_by_age(catalog, entered):
    entered.add({"7": 1})
    oldest = AwaitedSchemas().read(catalog).oldest
    assert oldest is not None
    assert not list_waiting_files(catalog, known=(), before=oldest - 1)
    assert len(list_waiting_files(catalog, known=(), before=oldest)) == 1


def test_names_of_schemas_are_read_without_their_definitions(catalog):
    add_schemas(catalog, [Schema(schema=name, format="avro", definition="{}") for name in ("1", "2")])
    add_schemas(catalog, [Schema(schema="3", format="protobuf", definition="{}")])
    assert list_names(catalog) == {"1", "2", "3"}
    assert list_names(catalog, format_="avro") == {"1", "2"}
