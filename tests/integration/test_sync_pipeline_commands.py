"""Syncs that CDC feeds, on a real PostgreSQL: nothing is captured, rounds pass by, and the files that are written."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from sqlalchemy import ForeignKey, String, create_engine, select, text, types
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from oncehouse.cli.app import run_command
from oncehouse.clickhouse.preflight.check import Level, inspect, needs_of
from oncehouse.config.file_loader import load_pipeline
from oncehouse.errors import ConfigurationError
from oncehouse.sync import sqlalchemy as sync_sqlalchemy
from oncehouse.sync.cdc.pipeline_files import VERSIONS_ABOVE
from oncehouse.sync.model import model_sync as core
from oncehouse.sync.model.engines import Collapsing
from oncehouse.sync.status import read_status
from oncehouse.sync.table.ddl import plan_table
from oncehouse.sync.verify import verify
from synced_shop import Shop, open_shop

from django.core.management import call_command  # isort: skip - after the settings of synced_shop
from django.core.management.base import CommandError
from django.db import connections, models
from django.db.models.functions import Upper
from django.test.utils import CaptureQueriesContext

from oncehouse.sync.django import Column, ModelSerializer, ModelSync
from sync_shop.clickhouse_models import OrderSync
from sync_shop.models import Customer, GiftOrder, Line, Order, Seat, Tag

FULL = (
    "ALTER TABLE sync_shop_order REPLICA IDENTITY FULL; ALTER TABLE sync_shop_customer REPLICA IDENTITY FULL"
)


@pytest.fixture
def shop(postgres_url, clickhouse, database, monkeypatch, tmp_path) -> Iterator[Shop]:
    # Django is set up already; the name is how the command knows that there is a project.
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "the_tests_settings")
    monkeypatch.chdir(tmp_path)
    settings = {"kafka": {"bootstrap_servers": "localhost:9092"}, "database": postgres_url}
    (tmp_path / "messaging.yaml").write_text(yaml.safe_dump(settings))
    address = {"db_url": f"http://127.0.0.1:{clickhouse.place.ports['http']}", "db_name": database}
    with open_shop(postgres_url, address) as shop:
        yield shop


@pytest.fixture
def declare(shop) -> Iterator[Callable[..., type[ModelSync]]]:
    """A sync of the shop's database, for the time of the test."""
    registered = core._registered
    known = list(registered)

    def make(name: str, model: Any, **attributes: Any) -> type[ModelSync]:
        own = {
            "django_model": model,
            "sync_enabled": True,
            "sync_storage": "cdc",
            "source_database": shop.alias,
            **attributes,
        }
        return type(name, (ModelSync,), own | {"__module__": __name__})

    yield make
    registered[:] = known


def execute(shop: Shop, statement: str) -> None:
    with connections[shop.alias].cursor() as cursor:
        cursor.execute(statement)


def refuse(capsys, *names: str) -> str:
    assert run_command(["sync", "pipeline", *names, "--prefix", "shop"]) == 2
    return capsys.readouterr().err


def test_nothing_is_captured_and_no_round_runs(shop, declare, capsys):
    big = declare("BigSync", Customer, table="big")
    with CaptureQueriesContext(connections[shop.alias]) as asked:
        ann = Customer.objects.using(shop.alias).create(name="Ann")
        Customer.objects.using(shop.alias).filter(pk=ann.pk).update(vip=True)
        big.register([ann.pk])
    # CustomerSync of the same model notes its keys; this one adds no statement and no key.
    assert shop.waiting(big) == []
    assert not any("BigSync" in query["sql"] for query in asked.captured_queries)
    assert not big.need_sync()
    with pytest.raises(ConfigurationError, match=r"is fed by CDC: run `oncehouse run bigsync\.yaml`"):
        big.sync_batch_from_storage()
    assert run_command(["sync", "run", "--once", "BigSync"]) == 1
    assert "fed by CDC" in capsys.readouterr().err
    assert run_command(["sync", "status", "BigSync"]) == 0
    assert "BigSync: by CDC, pipeline file bigsync.yaml" in capsys.readouterr().out
    assert run_command(["sync", "status", "--json", "BigSync"]) == 0
    [status] = json.loads(capsys.readouterr().out)["syncs"]
    assert (status["pipeline_file"], status["waiting"]) == ("bigsync.yaml", None)


def test_a_model_that_cdc_alone_feeds_is_changed_as_if_there_were_no_sync(shop, declare, monkeypatch):
    monkeypatch.setattr(core, "_registered", [])
    Customer.objects.using(shop.alias).create(name="Eve")

    def change() -> list[str]:
        with CaptureQueriesContext(connections[shop.alias]) as asked:
            Customer.objects.using(shop.alias).update(vip=True)
            Customer.objects.using(shop.alias).filter(name="nobody").delete()
        return [query["sql"] for query in asked.captured_queries]

    alone = change()
    declare("BigSync", Customer)
    assert change() == alone


def test_runs_of_all_syncs_pass_by_those_that_cdc_feeds(shop, declare, monkeypatch, capsys):
    declared = declare("BigSync", Customer)
    monkeypatch.setattr(core, "_registered", [declared])
    out, err = io.StringIO(), io.StringIO()
    call_command("clickhouse_sync", "--once", stdout=out, stderr=err)
    assert (out.getvalue(), err.getvalue()) == ("", "no sync has operations: CDC feeds BigSync\n")
    assert run_command(["sync", "run", "--once"]) == 0
    assert "no sync has operations: CDC feeds BigSync" in capsys.readouterr().err


def test_commands_say_that_no_sync_is_enabled(shop, declare, monkeypatch, capsys):
    declared = declare("IdleSync", Customer, sync_enabled=False, sync_storage=None)
    monkeypatch.setattr(core, "_registered", [declared])
    err = io.StringIO()
    for command in ("clickhouse_sync", "clickhouse_sync_backfill", "clickhouse_sync_verify"):
        call_command(command, *(["--once"] if command == "clickhouse_sync" else []), stderr=err)
    for words in (["run", "--once"], ["backfill"], ["verify"]):
        assert run_command(["sync", *words]) == 0
    told = err.getvalue() + capsys.readouterr().err
    assert told.count("no sync is enabled; with sync_enabled = True in its class") == 6
    assert "(IdleSync)" in told


def test_the_files_of_a_django_model_load_and_fit_its_table(shop, declare, capsys, tmp_path):
    execute(shop, FULL)
    columns = {"tags": None, "took": None, "note": None, "remark": Column("Nullable(String)", "note")}
    orders = declare("BigOrders", Order, table="big_orders", columns=columns)
    seats = declare("BigSeats", Seat, table="big_seats")
    execute(shop, "ALTER TABLE sync_shop_seat REPLICA IDENTITY FULL")
    assert run_command(["sync", "pipeline", "--prefix", "shop", "--folder", "out"]) == 0
    told = capsys.readouterr().out
    assert (
        "  oncehouse cdc apply out/shop.connector.json\n  oncehouse sync apply BigOrders BigSeats\n" in told
    )
    connector = json.loads((tmp_path / "out/shop.connector.json").read_text())["config"]
    assert connector["table.include.list"] == "public\\.sync_shop_order,public\\.sync_shop_seat"
    pipeline = load_pipeline(tmp_path / "out/bigorders.yaml")
    assert dict(pipeline.tables[0].columns or {}) == {
        "id": "id",
        "customer_id": "customer_id",
        "total": "total",
        "placed_at": "placed_at",
        "details": "details",
        "removed": "removed",
        "remark": "note",
        "_version": "oncehouse_version",
        "_deleted": "_deleted",
    }
    assert pipeline.source.fields["total"] == "Decimal(12, 2)"
    # The tables are those of `sync apply`, and the pipeline finds nothing to object to.
    assert run_command(["sync", "apply", "BigOrders", "BigSeats"]) == 0
    assert plan_table(orders.open_clickhouse(), orders.declaration()).is_empty
    found = inspect(orders.open_clickhouse(), needs_of(pipeline, pipeline.tables[0]))
    assert [one for one in found if one.level is Level.ERROR] == []
    assert load_pipeline(tmp_path / "out/bigseats.yaml").pipeline == seats.declaration().pipeline
    assert "exist already and nothing was written" in refuse(capsys, "BigOrders", "--folder", "out")


def test_what_the_log_cannot_give_is_refused_by_name_all_at_once(shop, declare, capsys):
    class Loud(ModelSerializer):
        pass

    def narrower(cls: Any, keys: Any) -> Any:
        return super(declared, cls).get_sync_queryset(keys).filter(removed=False)

    declared = declare(
        "BigOrders",
        Order,
        table="big_orders",
        columns={**OrderSync.columns, "upper": Column("String", Upper("note")), "removed": Column("UInt8")},
        watch={Line: "order"},
        django_model_serializer=Loud,
        get_sync_queryset=classmethod(narrower),
        engine=Collapsing(),
    )
    told = refuse(capsys, "BigOrders")
    for wanted in (
        "columns['tags']: the links of a many-to-many field are rows of another table. Leave it out: ",
        "columns['took']: interval",
        "columns['customer_name']: customer__name is computed, or comes over a join",
        "columns['lines']",
        "columns['upper']",
        "columns['removed']: bool of the database's log cannot fill UInt8",
        "watch: ",
        "django_model_serializer: ",
        "get_sync_queryset: no round runs",
        "engine: Collapsing",
    ):
        assert wanted in told


def test_other_syncs_parents_other_fields_and_names_are_refused(shop, declare, capsys):
    class Rot13(models.CharField):
        def from_db_value(self, value: Any, *_: Any) -> Any:
            return value

    class Odd(models.Model):
        secret = Rot13(max_length=10)
        plain = models.CharField(max_length=10, null=True, db_column="_key")  # noqa: DJ001
        gone = models.IntegerField()

        class Meta:
            app_label = "sync_shop"
            db_table = "odd"

        def __str__(self) -> str:
            return ""

    execute(shop, "CREATE TABLE odd (id bigint PRIMARY KEY, secret varchar(10) NOT NULL, _key varchar(10))")
    declare("OddSync", Odd, columns={"plain": Column("String", default="")})
    told = refuse(capsys, "OddSync")
    assert "columns['secret']: Rot13 makes its values in Python" in told
    assert "columns['plain']: a default in place of null" in told
    assert "columns['gone']: the log of public.odd has no column 'gone'" in told
    declare("NamedSync", Odd, columns={"secret": None, "gone": None})
    assert "columns['plain']: a field of the change itself has this name" in refuse(capsys, "NamedSync")
    declare("GiftSync", GiftOrder, columns={"tags": None})
    assert "columns['total']: it is a column of the parent's table, sync_shop_order" in refuse(
        capsys, "GiftSync"
    )
    assert "is fed by rounds" in refuse(capsys, "CustomerSync")
    declare("Twin", Seat, sync_name="a.b")
    declare("Other", Seat, sync_name="a-b".replace("-", "_"))
    assert "would both be the pipeline 'a_b'" in refuse(capsys, "a.b", "a_b")


def test_without_a_sync_that_says_cdc_there_is_nothing_to_write(shop, capsys):
    assert 'write sync_storage = "cdc"' in refuse(capsys)


def test_large_values_ask_for_the_whole_row_only_where_a_sync_reads_them(shop, declare, capsys):
    declare("BigOrders", Order, columns={"tags": None, "took": None})
    assert 'ALTER TABLE "public"."sync_shop_order" REPLICA IDENTITY FULL;  -- total, note, details' in refuse(
        capsys, "BigOrders"
    )
    declare("Slim", Order, columns=dict.fromkeys(("tags", "took", "total", "note", "details")))
    assert run_command(["sync", "pipeline", "Slim", "--prefix", "shop"]) == 0
    capsys.readouterr()
    assert (
        run_command(["sync", "pipeline", "BigOrders", "--prefix", "other", "--without-full", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["files"] == ["other.connector.json", "bigorders.yaml"]
    assert "dead letter" in found["warnings"][0]


def test_a_table_that_cdc_feeds_is_compared_with_the_database_and_not_repaired(
    shop, declare, capsys, monkeypatch
):
    monkeypatch.setattr(verify, "PAUSE_SECONDS", 0.01)
    declare("BigTags", Tag, table="big_tags")
    assert run_command(["sync", "apply", "BigTags"]) == 0
    Tag.objects.using(shop.alias).bulk_create([Tag(id=number, name="a") for number in range(5)])
    insert = "INSERT INTO big_tags (id, name, _version, _deleted) SELECT number, {}, {} + number, {} "
    client = OrderSync.open_clickhouse()
    client.command(insert.format("'a'", VERSIONS_ABOVE, 0) + "FROM numbers(5)")
    capsys.readouterr()
    assert run_command(["sync", "verify", "BigTags"]) == 0
    client.command(insert.format("'b'", VERSIONS_ABOVE + 10, 0) + "FROM numbers(1)")
    client.command(insert.format("'a'", VERSIONS_ABOVE + 10, 1) + "FROM numbers(1, 2)")
    client.command(insert.format("'a'", VERSIONS_ABOVE + 10, 0) + "FROM numbers(7, 3)")
    capsys.readouterr()
    assert run_command(["sync", "verify", "BigTags", "--json"]) == 3
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["syncs"][0]
    assert [found[kind]["count"] for kind in ("stale", "missing", "extra")] == [1, 2, 3]
    assert run_command(["sync", "verify", "BigTags"]) == 3
    assert "oncehouse dead-letters list bigtags.yaml" in capsys.readouterr().out
    for words in (["verify", "--repair"], ["backfill"], ["replay", "--all"]):
        assert run_command(["sync", words[0], "BigTags", *words[1:]]) == 2
        assert "is fed by CDC" in capsys.readouterr().err


def test_a_comparison_of_all_syncs_has_those_that_cdc_feeds_and_a_repair_says_that_it_leaves_them_out(
    shop, declare, capsys, monkeypatch
):
    monkeypatch.setattr(verify, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(core, "_registered", [declare("BigTags", Tag, table="big_tags")])
    assert run_command(["sync", "apply", "BigTags"]) == 0
    Tag.objects.using(shop.alias).create(id=1, name="a")
    out, err = io.StringIO(), io.StringIO()
    with pytest.raises(CommandError, match="rows differ") as raised:
        call_command("clickhouse_sync_verify", stdout=out, stderr=err)
    assert raised.value.returncode == 3
    assert "BigTags: 1 rows in 0 ranges: missing 1" in out.getvalue()
    assert "BigTags: missing: [1]" in out.getvalue()
    assert "oncehouse dead-letters list bigtags.yaml" in out.getvalue()
    call_command("clickhouse_sync_verify", "--repair", stdout=out, stderr=err)
    assert "BigTags: left out, CDC feeds it" in err.getvalue()
    capsys.readouterr()
    assert run_command(["sync", "verify", "--repair"]) == 0
    assert "BigTags: left out, CDC feeds it" in capsys.readouterr().err
    with pytest.raises(CommandError, match="is fed by CDC"):
        call_command("clickhouse_sync_verify", "BigTags", "--repair", stdout=out, stderr=err)


class Base(DeclarativeBase):
    pass


class Shout(types.TypeDecorator[str]):
    impl = String
    cache_ok = True

    def process_result_value(self, value: str | None, _dialect: Any) -> str | None:
        return value and value.upper()


class Person(Base):
    __tablename__ = "people"
    __table_args__ = {"schema": "sales"}  # noqa: RUF012 - as SQLAlchemy has it
    number: Mapped[int] = mapped_column("Nr", primary_key=True)
    kind: Mapped[str] = mapped_column("class")
    loud: Mapped[str] = mapped_column(Shout())
    pets: Mapped[list[Pet]] = relationship()
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "person"}  # noqa: RUF012


class Boss(Person):
    __mapper_args__ = {"polymorphic_identity": "boss"}  # noqa: RUF012


class Pet(Base):
    __tablename__ = "pets"
    id: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[int] = mapped_column(ForeignKey("sales.people.Nr"))


@pytest.fixture
def people(shop, postgres_url, monkeypatch) -> Iterator[str]:
    known = list(core._registered)
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA sales"))
        Base.metadata.create_all(connection)
        connection.execute(text("ALTER TABLE sales.people REPLICA IDENTITY FULL"))
    engine.dispose()
    monkeypatch.setattr(
        sync_sqlalchemy.sources,
        "_configured",
        {
            "source": postgres_url,
            "settings": sync_sqlalchemy.sources.read_settings({"CLICKHOUSE_DATABASES": {"default": {}}}),
        },
    )
    yield postgres_url
    core._registered[:] = known


def declare_mapped(model: Any, **attributes: Any) -> Any:
    own = {"model": model, "sync_enabled": True, "sync_storage": "cdc", **attributes}
    return type(f"{model.__name__}Sync", (sync_sqlalchemy.ModelSync,), own | {"__module__": __name__})


def test_a_mapped_class_is_fed_under_the_names_that_its_table_has(people, capsys, tmp_path):
    sync = declare_mapped(Person, columns={"loud": None})
    engine = create_engine(people)
    with Session(engine) as session:
        session.add(Person(number=1, kind="person", loud="a"))
        session.commit()
        sync.register(session, [1])
        noted = session.execute(text("SELECT count(*) FROM oncehouse_sync_operations")).scalar()
        session.rollback()
    engine.dispose()
    assert noted == 0
    assert run_command(["sync", "pipeline", "PersonSync", "--prefix", "shop"]) == 0
    pipeline = load_pipeline(tmp_path / "personsync.yaml")
    assert pipeline.source.topics == ("shop.sales.people",)
    assert dict(pipeline.tables[0].columns or {}) == {
        "number": "Nr",
        "kind": "class",
        "_version": "oncehouse_version",
        "_deleted": "_deleted",
    }
    [status] = read_status([sync])
    assert status.pipeline_file == "personsync.yaml"


def test_what_the_log_does_not_have_of_a_mapped_class_is_refused(people, capsys):
    count = select(Pet.id).where(Pet.owner == Person.number).scalar_subquery()
    declare_mapped(Person, columns={"pets": sync_sqlalchemy.Column("UInt64", count)}, watch={Pet: "owner"})
    told = refuse(capsys, "PersonSync")
    assert "columns['loud']: Shout makes its values in Python" in told
    assert "columns['pets']: it is computed, or a column of another table, and none of people" in told
    assert "watch: " in told
    declare_mapped(Boss, columns={"loud": None})
    assert "model: people has rows of other classes too" in refuse(capsys, "BossSync")
