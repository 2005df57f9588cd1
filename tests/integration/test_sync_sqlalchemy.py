"""Syncs of SQLAlchemy classes on real PostgreSQL and ClickHouse: what is in the tables at rest."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import create_engine, delete, insert, select, update
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from oncehouse.cli.app import run_command
from oncehouse.errors import PermanentError
from oncehouse.sync.model import model_sync as core
from oncehouse.sync.rounds.runner import FailedRun, run_once
from oncehouse.sync.sqlalchemy import ModelSerializer, ModelSync, configure, sources
from stall_writer import Writer
from sync_stall import (
    SYNCS,
    Boss,
    Buyer,
    BuyerSync,
    Chair,
    GiftSale,
    Line,
    Person,
    Sale,
    SaleSync,
    Stall,
    State,
    Tag,
    assert_equal,
    open_synced_stall,
)


@pytest.fixture
def stall(postgres_url, clickhouse, database) -> Iterator[Stall]:
    with open_synced_stall(postgres_url, clickhouse, database) as stall:
        yield stall


def sync_all() -> None:
    for outcome in run_once(SYNCS):
        assert not isinstance(outcome, FailedRun), outcome


def test_values_arrive_as_they_are(stall):
    with stall.session() as session:
        ann = Buyer(name="Änn", born=date(1901, 2, 3))
        sale = Sale(
            buyer=ann, total=Decimal("12.34"), details={"ä": 1}, took=timedelta(seconds=1.5), state=State.PAID,
            tags=[Tag(name="a"), Tag(name="b")], lines=[Line(amount=1)],
        )  # fmt: skip
        session.add(sale)
        session.commit()
        tags = sorted(tag.id for tag in sale.tags)
    sync_all()
    assert stall.rows(SaleSync, "total, details, took, state, tags, buyer_name, lines, remark") == [
        (Decimal("12.34"), '{"ä": 1}', 1_500_000, "PAID", tags, "Änn", 1, None)
    ]
    assert stall.rows(BuyerSync, "name, vip, born") == [("Änn", False, date(1901, 2, 3))]


def test_every_kind_of_change_ends_in_what_the_database_has(stall):
    with stall.session() as session:
        session.add_all([
            Buyer(name=name, sales=[Sale(lines=[Line(amount=1)]), GiftSale(greeting="hi")]) for name in "abc"
        ])  # fmt: skip
        session.add_all([Boss("b"), Person("p"), Chair("x", 1), Chair("x", 2), Tag(name="t")])
        session.commit()
        sync_all()
        assert_equal(stall)
        session.execute(update(Buyer).where(Buyer.name > "a").values(vip=True))
        session.execute(update(Sale).values(total=Sale.total + 1))
        session.execute(delete(Chair).where(Chair.number == 2))
        session.execute(insert(Chair), [{"hall": "y", "number": n} for n in range(3)])
        first, second, third = session.scalars(select(Buyer).order_by(Buyer.name))
        first.sales[0].tags = list(session.scalars(select(Tag)))
        second.sales[0].lines.append(Line(amount=2))
        second.sales[1].remark = "gift"
        session.delete(third)
        session.execute(update(Person).where(Person.name == "b").values(role="person"))
        session.commit()
    sync_all()
    assert_equal(stall)


def test_two_transactions_that_share_no_lock_both_count_whichever_commits_first(stall):
    with stall.session() as first, stall.session() as second:
        sale, red, blue = Sale(buyer=Buyer(name="Ann")), Tag(name="red"), Tag(name="blue")
        first.add_all([sale, red, blue])
        first.commit()
        other, red_id, blue_id = second.get(Sale, sale.id), red.id, blue.id
        sale.tags.append(red)
        first.flush()
        other.tags.append(second.get(Tag, blue_id))
        second.commit()
        sync_all()
        assert stall.rows(SaleSync, "tags") == [([blue_id],)]
        first.commit()
    sync_all()
    assert stall.rows(SaleSync, "tags") == [(sorted([red_id, blue_id]),)]


def test_writers_of_every_kind_while_syncs_run(stall, record_property):
    seed = random.randrange(1 << 30)
    record_property("seed", seed)
    with stall.session() as session:
        session.add_all([Tag(name=str(n)) for n in range(3)])
        session.commit()

    def write(writer: Writer) -> None:
        for _ in range(60):
            writer.write()

    writers = [threading.Thread(target=write, args=(Writer(stall, seed + n),)) for n in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        sync_all()
    sync_all()
    assert_equal(stall)


def test_a_serializer_makes_rows_of_objects(stall, monkeypatch):
    class Louder(ModelSerializer):
        def value_of(self, obj: Any, name: str) -> Any:
            if name == "buyer_name":
                return obj.buyer.name.upper()
            return len(obj.lines) if name == "lines" else super().value_of(obj, name)

    monkeypatch.setattr(SaleSync, "model_serializer", Louder)
    with stall.session() as session:
        session.add(Sale(buyer=Buyer(name="ann"), tags=[Tag(name="t")]))
        session.commit()
    sync_all()
    assert [row[0] for row in stall.rows(SaleSync, "buyer_name, tags")] == ["ANN"]
    assert_equal(stall)
    monkeypatch.setattr(Louder, "serialize", lambda _self, _obj: {"id": 1})
    with stall.session() as session:
        session.execute(update(Sale).values(total=1))
        session.commit()
    [outcome] = run_once([SaleSync])
    assert isinstance(outcome, FailedRun)
    assert isinstance(outcome.error, PermanentError)
    assert "no value for the column" in str(outcome.error)


def test_what_a_narrower_select_leaves_out_is_deleted(stall, monkeypatch):
    def get_sync_select(keys: Any) -> Any:
        return ModelSync.get_sync_select.__func__(SaleSync, keys).where(Sale.removed.is_(False))

    monkeypatch.setattr(SaleSync, "get_sync_select", get_sync_select)
    with stall.session() as session:
        sale = Sale(buyer=Buyer(name="ann"))
        session.add(sale)
        session.commit()
        sync_all()
        assert len(stall.rows(SaleSync, "id")) == 1
        sale.removed = True
        session.commit()
    sync_all()
    assert stall.rows(SaleSync, "id") == []


@pytest.mark.parametrize("kind", ["url", "async engine"])
def test_the_source_may_be_a_url_or_an_async_engine(stall, kind):
    url = stall.engine.url
    given = url.render_as_string(hide_password=False) if kind == "url" else create_async_engine(url)
    settings = BuyerSync.read_settings()
    configure(given, CLICKHOUSE_DATABASES=settings.databases)
    with stall.session() as session:
        session.add(Buyer(name="Ann"))
        session.commit()
    sync_all()
    assert stall.rows(BuyerSync, "name") == [("Ann",)]


PROJECT = """
import os
from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from oncehouse.sync.sqlalchemy import ModelSync, configure

configure(os.environ["SHOP"], CLICKHOUSE_DATABASES={"default": {"db_url": os.environ["CLICKHOUSE"]}})

class Base(DeclarativeBase):
    pass

class Guest(Base):
    __tablename__ = "guests"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]

class GuestSync(ModelSync):
    model = Guest
    sync_enabled = True
"""


@pytest.fixture
def party(postgres_url, clickhouse, database, tmp_path, monkeypatch) -> Iterator[None]:
    """The folder that a person would stand in."""
    (tmp_path / "party.py").write_text(PROJECT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    monkeypatch.setenv("SHOP", postgres_url)
    monkeypatch.setenv("CLICKHOUSE", f"http://127.0.0.1:{clickhouse.place.ports['http']}/{database}")
    known, configured = list(core._registered), dict(sources._configured)
    core._registered.clear()
    yield
    core._registered[:] = known
    sources._configured.update(configured)
    sys.modules.pop("party", None)


def test_the_commands_find_the_syncs_of_a_module(party, postgres_url, capsys):
    def command(*arguments: str) -> str:
        assert run_command(["sync", *arguments, "--module", "party"]) == 0
        return capsys.readouterr().out

    assert "the tables of model sync are in" in command("init", "--yes")
    assert "CREATE TABLE `guests`" in command("plan")
    command("apply")
    guests = sys.modules["party"]
    engine = create_engine(postgres_url)
    guests.Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(guests.Guest(name="Ann"))
        session.commit()
    engine.dispose()
    assert command("run", "--once") == "GuestSync: 1 operations, 1 rows\n"
    [status] = json.loads(command("status", "--json"))["syncs"]
    assert (status["model"], status["waiting"], status["rows_synced"]) == ("party.Guest", 0, 1)
