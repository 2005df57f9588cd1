"""Open dead letters, counted and listed by the database: the same as file by file, however many there are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from ledger_examples import IDENTITY, make_dead_letters, make_registration, take_lease
from oncehouse.ledger.catalog import dead_letters, epochs
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.catalog.registration import register
from oncehouse.ledger.models import DeadLetterFile, DeadLetterKind, EpochKind
from oncehouse.ledger.stats.awaited_schemas import AwaitedSchemas

REASONS = ("not_json", "100%_odd", 'quo"ted', "back\\slash", "ünïcode", "x" * 3000)


def enter(catalog: Catalog, files: list[DeadLetterFile], *, tried: tuple[str, ...] = ()) -> None:
    """Each epoch's files, and a last epoch that tries some of them again."""
    token = take_lease(catalog)
    last = max((file.epoch for file in files), default=0)
    for epoch in range(1, last + 1):
        mine = tuple(file for file in files if file.epoch == epoch)
        register(
            catalog, token, make_registration(epoch, epoch * 10, epoch * 10 + 10, dead_letter_files=mine)
        )
    again = make_registration(last + 1, 0, 1, kind=EpochKind.REPLAY, ranges=())
    register(catalog, token, replace(again, tried_dead_letter_files=tried))


def make_files(epochs_of_files: list[int]) -> list[DeadLetterFile]:
    """Files with one, two or three reasons in turn; the same counts come again."""
    return [
        replace(
            make_dead_letters(f"{epoch:03d}-{number}", epoch=epoch),
            reasons={
                REASONS[(number + more) % len(REASONS)]: number % 3 + 1 for more in range(number % 3 + 1)
            },
        )
        for number, epoch in enumerate(sorted(epochs_of_files))
    ]


def add_up(files: list[DeadLetterFile]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for file in files:
        for reason, rows in file.reasons.items():
            counted[reason] = counted.get(reason, 0) + rows
    return counted


def test_letters_are_counted_as_file_by_file_without_those_tried_or_of_another_kind(catalog, catalog_url):
    files = make_files([1, 1, 2, 2, 2, 3, 3, 4, 4, 4, 4, 5])
    waiting = replace(make_dead_letters("w", epoch=2), reasons={"schema-7": 5}, kind=DeadLetterKind.WAITING)
    enter(catalog, [*files, waiting], tried=(files[0].dead_letter_file, files[7].dead_letter_file))
    other = Catalog(catalog_url, "other", retry_seconds=())
    other.adopt(IDENTITY)
    enter(other, make_files([1]))
    other.close()
    left = [file for number, file in enumerate(files) if number not in {0, 7}]
    assert dead_letters.count_reasons(catalog) == add_up(left)
    assert AwaitedSchemas().read(catalog).schemas == {"schema-7": 5}
    assert list(dead_letters.count_reasons(catalog)) == sorted(dead_letters.count_reasons(catalog))


@given(
    places=st.lists(st.integers(1, 4), min_size=1, max_size=9),
    reason=st.sampled_from([None, *REASONS, "unheard"]),
    look=st.integers(1, 4),
    at=st.integers(0, 8),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_files_are_walked_newest_first_from_any_of_them_on(
    places, reason, look, at, tmp_path_factory, monkeypatch
):
    monkeypatch.setattr(dead_letters, "_FILES_A_QUERY", look)
    catalog = Catalog(f"sqlite:///{tmp_path_factory.mktemp('walk')}/catalog.db", "shop", retry_seconds=())
    catalog.prepare()
    catalog.adopt(IDENTITY)
    files = make_files(places)
    enter(catalog, files)
    listed = list(reversed(epochs.list_dead_letter_files(catalog)))
    start = listed[at % len(listed)]
    assert dead_letters.find_open_file(catalog, start.dead_letter_file) == start
    for first, rest in ((None, listed), (start, listed[listed.index(start) :])):
        found = list(dead_letters.walk_newest_files(catalog, reason=reason, start=first))
        assert found == [file for file in rest if reason is None or reason in file.reasons]
    catalog.close()


def test_files_are_walked_by_each_database(catalog, monkeypatch):
    monkeypatch.setattr(dead_letters, "_FILES_A_QUERY", 2)
    files = make_files([1, 1, 1, 2, 3, 3, 4])
    enter(catalog, files)
    for reason in (None, *REASONS):
        kept = [file.dead_letter_file for file in files if reason is None or reason in file.reasons]
        found = [file.dead_letter_file for file in dead_letters.walk_newest_files(catalog, reason=reason)]
        assert found == kept[::-1]


@pytest.mark.parametrize("name", ["", "gone", "\0", "ü", "x" * 65, "\ud800"])
def test_no_file_is_found_by_a_name_that_none_has(catalog, name):
    assert dead_letters.find_open_file(catalog, name) is None


def count_rows_read(catalog: Catalog, monkeypatch) -> list[object]:
    """Each row of letters that becomes a record from now on."""
    read: list[object] = []
    made = dead_letters.dead_letter_file_of
    monkeypatch.setattr(dead_letters, "dead_letter_file_of", lambda row: read.append(row) or made(row))
    return read


def test_the_newest_files_cost_the_same_however_many_there_are(catalog, monkeypatch):
    monkeypatch.setattr(dead_letters, "_FILES_A_QUERY", 5)
    enter(catalog, make_files([1] * 40))
    read = count_rows_read(catalog, monkeypatch)
    next(dead_letters.walk_newest_files(catalog))
    assert len(read) == 5


def test_open_letters_are_found_by_the_index(tmp_path):
    """The plan of SQLite; PostgreSQL's depends on what it has counted."""
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db", "shop", retry_seconds=())
    catalog.prepare()
    asked: list[tuple[str, object]] = []
    event.listen(
        catalog.engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, values, *_more: asked.append((statement, values)),
    )
    dead_letters.count_reasons(catalog)
    AwaitedSchemas().read(catalog)
    list(dead_letters.walk_newest_files(catalog, start=make_dead_letters("a", epoch=3)))
    statements = [found for found in asked if "oncehouse_dead_letter_files" in found[0]]
    assert len(statements) == 3
    with catalog.engine.connect() as connection:
        for statement, values in statements:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
            found = " ".join(str(row[-1]) for row in plan)
            assert "USING INDEX oncehouse_dead_letter_files_open (pipeline=? AND kind=?" in found
            assert "USE TEMP B-TREE FOR ORDER BY" not in found
    catalog.close()
