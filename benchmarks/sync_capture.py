"""What noticing a change costs a save: saves with capture and without, in turns, each in a transaction of its own.

    python benchmarks/sync_capture.py postgresql+psycopg://… [--saves 1500] [--profile]

Run by benchmarks/sync.py in a process of its own, for Django is set up once a process. Prints one JSON object: for each
framework and kind of save the medians with capture and without, in microseconds. Without capture means that the
framework runs its own code alone: what notices is taken out, not told to look away.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import json
import pstats
import statistics
import sys
import time
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal

from sqlalchemy import DateTime, Numeric, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import sync_orders
from oncehouse.sync.sqlalchemy import ModelSync as SqlAlchemySync
from oncehouse.sync.sqlalchemy import configure
from oncehouse.sync.sqlalchemy.capture import listeners

SAVES = 1_500
ROWS = 200
WARM_UP = 50

Save = Callable[[int], None]
Switch = Callable[[bool], None]


class Base(DeclarativeBase):
    pass


class Order(Base):
    """The table of the Django model."""

    __tablename__ = sync_orders.TABLE

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[int]
    status: Mapped[str]
    quantity: Mapped[int]
    total: Mapped[Decimal] = mapped_column(Numeric(12, 2))
    paid: Mapped[bool]
    note: Mapped[str]
    placed_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class OrderSync(SqlAlchemySync):
    model = Order
    sync_name = "of_sqlalchemy"
    sync_enabled = True


def compare(save: Save, switch: Switch, saves: int) -> dict[str, float]:
    """Medians of saves with capture and without; which of a pair comes first changes with each pair."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    numbers = itertools.count()
    for pair in range(WARM_UP + saves):
        for captured in (pair % 2 == 0, pair % 2 == 1):
            switch(captured)
            number = next(numbers)
            begun = time.perf_counter()
            save(number)
            if pair >= WARM_UP:
                seconds[captured].append(time.perf_counter() - begun)
    switch(True)
    return {
        "captured_us": statistics.median(seconds[True]) * 1e6,
        "bare_us": statistics.median(seconds[False]) * 1e6,
    }


def prepare_django(postgres: str) -> tuple[dict[str, Save], Switch]:
    sync_orders.set_up(
        postgres,
        "oncehouse.sync.django",
        CLICKHOUSE_DATABASES={"default": {"db_url": "http://localhost:8123", "db_name": "default"}},
    )
    from django.db import connection, models
    from django.db.models.sql import compiler

    from oncehouse.sync.django import ModelSync
    from oncehouse.sync.django.operations import CreateSyncTables

    model = sync_orders.define_order(models.Model)

    class DjangoOrderSync(ModelSync):
        django_model = model
        sync_enabled = True

    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {sync_orders.TABLE}, oncehouse_sync_operations")
    with connection.schema_editor() as editor:
        CreateSyncTables().database_forwards("oncehouse_sync", editor, None, None)
        editor.create_model(model)
    sync_orders.fill(connection, ROWS)
    orders = list(model.objects.order_by("pk"))
    places = [compiler.SQLInsertCompiler, compiler.SQLUpdateCompiler]
    noticing = [place.execute_sql for place in places]

    def switch(captured: bool) -> None:
        for place, ours in zip(places, noticing, strict=True):
            place.execute_sql = ours if captured else ours.__wrapped__

    def update(number: int) -> None:
        order = orders[number % ROWS]
        order.quantity = number
        order.save()

    def create(number: int) -> None:
        sync_orders.make_order(model, number).save()

    return {"django_update": update, "django_create": create}, switch


def prepare_sqlalchemy(postgres: str) -> tuple[dict[str, Save], Switch]:
    engine = create_engine(postgres)
    configure(
        engine, CLICKHOUSE_DATABASES={"default": {"db_url": "http://localhost:8123", "db_name": "default"}}
    )
    session = Session(engine, expire_on_commit=False)
    orders = session.query(Order).order_by(Order.id).limit(ROWS).all()
    session.commit()

    def switch(captured: bool) -> None:
        for target, name, listener, options in listeners():
            if captured and not event.contains(target, name, listener):
                event.listen(target, name, listener, **options)
            elif not captured and event.contains(target, name, listener):
                event.remove(target, name, listener)

    def update(number: int) -> None:
        orders[number % ROWS].quantity = number
        session.commit()

    def create(number: int) -> None:
        session.add(sync_orders.make_order(Order, number))
        session.commit()

    return {"sqlalchemy_update": update, "sqlalchemy_create": create}, switch


def show_profile(name: str, save: Save) -> None:
    profile = cProfile.Profile()
    for number in range(3_000):
        profile.runcall(save, number)
    print(name, file=sys.stderr)
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("postgres", help="URL of a database, whose tables of these names are made anew")
    parser.add_argument("--saves", type=int, default=SAVES)
    parser.add_argument("--profile", action="store_true", help="show where the time of captured saves goes")
    options = parser.parse_args()
    found = {}
    for prepare in (prepare_django, prepare_sqlalchemy):
        saves, switch = prepare(options.postgres)
        for name, save in saves.items():
            found[name] = compare(save, switch, options.saves)
            if options.profile:
                show_profile(name, save)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
