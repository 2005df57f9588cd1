"""What a sync of a SQLAlchemy class derives from the mapping, and what it refuses."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import CHAR, Column, ForeignKey, MetaData, Table, create_engine, select, types
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, registry

from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.sync.changes.change import format_key, read_key
from oncehouse.sync.model import model_sync as core
from oncehouse.sync.sqlalchemy import Column as SyncColumn
from oncehouse.sync.sqlalchemy import ModelSync, configure, sources
from oncehouse.sync.sqlalchemy.column_types import choose_conversion, choose_type
from oncehouse.sync.sqlalchemy.keys import choose_form
from oncehouse.sync.sqlalchemy.watches import find_watches


class Light(Enum):
    RED = "r"
    GREEN = "g"


class Base(DeclarativeBase):
    pass


class Thing(Base):
    __tablename__ = "things"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


class Part(Base):
    __tablename__ = "parts"
    id: Mapped[int] = mapped_column(primary_key=True)
    thing_id: Mapped[int] = mapped_column(ForeignKey("things.id"))


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    known, configured = list(core._registered), dict(sources._configured)
    yield
    core._registered[:] = known
    sources._configured.update(configured)


@pytest.mark.parametrize(
    ("given_type", "wanted"),
    [
        (types.SmallInteger(), "Int16"),
        (types.Integer(), "Int32"),
        (types.BigInteger(), "Int64"),
        (types.Boolean(), "Bool"),
        (types.Float(), "Float64"),
        (types.Double(), "Float64"),
        (types.Numeric(10, 2), "Decimal(10, 2)"),
        (types.Text(), "String"),
        (types.Enum(Light), "String"),
        (types.LargeBinary(), "String"),
        (types.JSON(), "String"),
        (postgresql.JSONB(), "String"),
        (postgresql.INET(), "String"),
        (types.Uuid(), "UUID"),
        (types.Date(), "Date32"),
        (types.Time(), "String"),
        (types.DateTime(timezone=True), "DateTime64(6, 'UTC')"),
        (types.Interval(), "Int64"),
        (postgresql.INTERVAL(), "Int64"),
        (types.ARRAY(types.Integer()), "Array(Int32)"),
    ],
)
def test_types(given_type, wanted):
    assert choose_type("Thing.x", given_type, nullable=False) == wanted
    nullable = wanted if wanted.startswith("Array") else f"Nullable({wanted})"
    assert choose_type("Thing.x", given_type, nullable=True) == nullable


@pytest.mark.parametrize("type_", [types.Numeric(), types.PickleType(), postgresql.TSVECTOR()])
def test_a_type_that_says_too_little_has_to_be_named(type_):
    with pytest.raises(ConfigurationError, match=r"Thing\.x is a .* Name one in `columns`"):
        choose_type("Thing.x", type_, nullable=False)


def test_values_that_clickhouse_takes_otherwise():
    assert choose_conversion(types.Enum(Light))(Light.RED) == "RED"
    assert (
        choose_conversion(types.Enum(Light, values_callable=lambda e: [m.value for m in e]))(Light.RED) == "r"
    )
    assert choose_conversion(types.Interval())(timedelta(milliseconds=2)) == 2000
    assert choose_conversion(types.JSON())({"ä": [1]}) == '{"ä": [1]}'
    assert choose_conversion(types.Text()) is None


@pytest.mark.parametrize(
    ("type_", "spellings"),
    [
        (types.BigInteger(), [5, "5"]),
        (types.Uuid(), [uuid.UUID(int=7), str(uuid.UUID(int=7)).upper()]),
        (types.Uuid(as_uuid=False), [str(uuid.UUID(int=10)).upper(), uuid.UUID(int=10).hex]),
        (CHAR(5), ["ab", "ab   "]),
        (types.Numeric(10, 2), [Decimal("1.5"), "1.50", Decimal("1.500")]),
        (types.Date(), [date(2024, 1, 2), "2024-01-02", datetime(2024, 1, 2, tzinfo=UTC)]),
        (
            types.DateTime(timezone=True),
            [
                datetime(2024, 1, 1, 12, tzinfo=UTC),
                datetime(2024, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))),
            ],
        ),
        (types.LargeBinary(), [b"\1", memoryview(b"\1")]),
    ],
)
def test_a_key_has_one_spelling(type_, spellings):
    form = choose_form("Thing.id", type_)
    spelled = {format_key([form(value)]) for value in spellings}
    assert len(spelled) == 1
    [text] = read_key(spelled.pop())
    assert form(text) == form(spellings[0])


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-7))])))
def test_an_instant_is_read_back_from_its_spelling(value):
    form = choose_form("Thing.id", types.DateTime(timezone=True))
    [text] = read_key(format_key([form(value)]))
    assert form(text) == value


class Fancy(types.TypeDecorator[str]):
    impl = types.String
    cache_ok = True


@pytest.mark.parametrize(
    "type_", [types.Enum(Light), types.String(collation="C"), types.Float(), types.Boolean(), Fancy()]
)
def test_keys_with_several_spellings_are_refused(type_):
    with pytest.raises(ConfigurationError, match="part of the key"):
        choose_form("Thing.id", type_)


def test_a_time_with_a_zone_is_no_key_of_a_column_without():
    with pytest.raises(PermanentError, match="time zone"):
        choose_form("Thing.id", types.DateTime())(datetime(2024, 1, 1, tzinfo=UTC))


def declare(**attributes: Any) -> type[ModelSync]:
    return type("ThingSync", (ModelSync,), {"model": Thing, "sync_enabled": True, **attributes})


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"model": object}, "is not a mapped class"),
        ({"columns": {"name": 5}}, "write a ClickHouse type, a Column or None"),
        ({"columns": {"nothing": "String"}}, "has no attribute 'nothing' that can be selected"),
    ],
)
def test_declarations_that_mean_nothing_are_refused(attributes, message):
    with pytest.raises(ConfigurationError, match=message):
        declare(**attributes).declaration()


def test_a_class_over_a_subquery_is_refused():
    class View:
        pass

    table = Table("a", MetaData(), Column("id", types.Integer, primary_key=True))
    registry().map_imperatively(View, select(table).subquery())
    with pytest.raises(ConfigurationError, match="mapped to a Subquery and not to a table"):
        declare(model=View).declaration()


@pytest.mark.parametrize("watch", [{Part: "id_of_nothing"}, {Part: ("id", "thing_id")}, {object: "x"}])
def test_a_watch_that_does_not_hold_the_key_is_refused(watch):
    declare(watch=watch)
    with pytest.raises(ConfigurationError, match=r"ThingSync\.watch"):
        find_watches(Part.__table__)


def test_a_watch_by_attribute():
    sync = declare(watch={Part: "thing_id"})
    [watch] = find_watches(Part.__table__)
    assert (watch.sync, [column.key for column in watch.columns]) == (sync, ["thing_id"])


def test_columns_by_expression_and_default():
    sync = declare(columns={"name": SyncColumn(default="?"), "twice": SyncColumn("Int64", Thing.id * 2)})
    assert list(sync.declaration().columns) == ["id", "name", "twice"]
    assert sync.read_column("name").make_value(None) == "?"
    assert sync.read_column("none") is None


def test_settings_and_source_are_said_once(tmp_path):
    sync = declare()
    with pytest.raises(ConfigurationError, match="there is no setting 'CLICKHOUSE_DELAY'"):
        configure("sqlite:///x", CLICKHOUSE_DELAY=1)
    sources._configured["source"] = None
    with pytest.raises(ConfigurationError, match="does not know which database"):
        sync.open_source()
    configure("sqlite://", CLICKHOUSE_SYNC_BATCH_SIZE=7)
    assert sync.declaration().batch_size == 7
    with pytest.raises(ConfigurationError, match="in memory"):
        sync.open_source()
    configure("mysql://x/y")
    with pytest.raises(ConfigurationError, match="mysql is not supported"):
        sync.open_source()
    sync.source = create_engine(f"sqlite:///{tmp_path}/a.db")
    assert sync.open_source() is sync.open_source()
    assert sync.open_source() is not sync.source


def test_engines_of_one_database_are_known_whatever_their_driver():
    engine = create_engine("postgresql+psycopg://u:p@h/d")
    assert sources.is_same_database(engine, "postgresql://v@h:5432/d")
    assert not sources.is_same_database(engine, "postgresql://u@h/e")
    assert sources.is_same_database(engine.execution_options(a=1), engine)
    own = create_engine("postgresql+psycopg://", creator=lambda: None)
    assert not sources.is_same_database(own, "postgresql+psycopg://")


def test_a_forked_process_opens_connections_of_its_own(tmp_path):
    given_engine = create_engine("postgresql+psycopg://u@h/d")
    pool = given_engine.pool
    url = f"sqlite:///{tmp_path}/a.db"
    engine = sources.open_source_engine(url)
    assert sources.open_source_engine(given_engine).pool is pool
    child = os.fork()
    if child == 0:
        renewed = sources.open_source_engine(given_engine).pool
        again = sources.open_source_engine(given_engine).pool
        os._exit(0 if sources.open_source_engine(url) is not engine and pool is not renewed is again else 1)
    assert os.waitpid(child, 0)[1] == 0
