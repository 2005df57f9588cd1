"""Every way in which SQLAlchemy changes rows is noticed, in the change's own transaction, on both databases."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import (
    MetaData,
    Table,
    bindparam,
    column,
    create_engine,
    delete,
    event,
    func,
    insert,
    select,
    table,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from oncehouse.errors import ConfigurationError
from oncehouse.sync.changes.change import format_key
from oncehouse.sync.sqlalchemy import configure
from sync_stall import (
    Boss,
    BossSync,
    Buyer,
    BuyerSync,
    Chair,
    ChairSync,
    GiftSale,
    GiftSaleSync,
    Line,
    Person,
    Sale,
    SaleSync,
    Stall,
    Tag,
    open_stall,
    sale_tags,
)


@pytest.fixture
def stall(catalog_url) -> Iterator[Stall]:
    with open_stall(catalog_url) as stall:
        yield stall


@pytest.fixture
def session(stall) -> Iterator[Session]:
    with stall.session() as session:
        yield session


@pytest.fixture
def ann(stall, session) -> Buyer:
    buyer = Buyer(name="Ann")
    session.add(buyer)
    session.commit()
    stall.forget_waiting()
    return buyer


@pytest.fixture
def sale(stall, session, ann) -> Sale:
    sale = Sale(buyer_id=ann.id)
    session.add(sale)
    session.commit()
    stall.forget_waiting()
    return sale


def key(*values: Any) -> str:
    return format_key(values)


def test_a_flush_of_many_whose_keys_the_database_gives(stall, session, ann):
    sales = [Sale(buyer_id=ann.id) for _ in range(3)]
    session.add_all(sales)
    session.flush()
    for sale in sales[:2]:
        sale.total = 5
    session.commit()
    keys = [key(sale.id) for sale in sales]
    assert sorted(stall.waiting(SaleSync)) == sorted(
        [*[("insert", one) for one in keys], *[("update", one) for one in keys[:2]]]
    )


def test_orphans(stall, session, ann):
    ann.sales = [Sale(), Sale()]
    session.commit()
    orphan = key(ann.sales[1].id)
    stall.forget_waiting()
    ann.sales.pop()
    session.commit()
    assert stall.waiting(SaleSync) == [("delete", orphan)]


def test_an_update_of_watched_rows_that_returns(stall, session, sale):
    line = Line(sale_id=sale.id, amount=2)
    session.add(line)
    session.commit()
    stall.forget_waiting()
    session.scalars(update(Line).where(Line.amount == 2).values(sale_id=None).returning(Line.id)).all()
    session.commit()
    assert stall.waiting(SaleSync) == [("update", key(sale.id))]
    session.delete(line)
    session.commit()
    assert len(stall.waiting(SaleSync)) == 1


@pytest.mark.parametrize("synchronize", ["auto", "evaluate", "fetch", False])
def test_an_update_that_moves_keys_and_returns_moves_what_the_session_has_not_flushed_yet(
    stall, session, sale, synchronize
):
    other = Sale(buyer_id=sale.buyer_id)
    session.add(other)
    session.commit()
    stall.forget_waiting()
    line = Line(sale_id=sale.id, amount=2)
    session.add(line)
    moved = update(Line).where(Line.amount == 2).values(sale_id=other.id).returning(Line.sale_id)
    found = session.scalars(moved, execution_options={"synchronize_session": synchronize})
    assert found.all() == [other.id]
    session.commit()
    assert {one for _kind, one in stall.waiting(SaleSync)} == {key(sale.id), key(other.id)}


def test_a_row_that_comes_while_it_is_moved_by_its_key_is_not_moved_unnoticed(stall, session, sale):
    if stall.engine.dialect.name == "sqlite":
        pytest.skip("SQLite lets nobody write while somebody writes")
    came: list[str] = []

    def come(connection, _cursor, statement, *_others):
        if statement.startswith("UPDATE lines") and not came:
            came.append(statement)
            with stall.session() as other, other.begin():
                other.add(Line(id=1, sale_id=sale.id, amount=1))

    event.listen(stall.engine, "before_cursor_execute", come)
    moved = update(Line).where(Line.id == 1).values(sale_id=None)
    assert session.execute(moved).rowcount == 0
    event.remove(stall.engine, "before_cursor_execute", come)
    assert came
    assert session.execute(moved).rowcount == 1
    session.commit()
    assert ("update", key(sale.id)) in stall.waiting(SaleSync)


def test_links_without_a_key_of_their_own_are_moved(stall, session, sale):
    other, red = Sale(buyer_id=sale.buyer_id), Tag(name="red")
    session.add_all([other, red])
    session.flush()
    session.execute(insert(sale_tags).values(sale_id=sale.id, tag_id=red.id))
    session.commit()
    stall.forget_waiting()
    session.execute(update(sale_tags).where(sale_tags.c.tag_id == red.id).values(sale_id=other.id))
    session.commit()
    assert {one for _kind, one in stall.waiting(SaleSync)} == {key(sale.id), key(other.id)}


def test_keys_of_several_columns_are_moved(stall, session):
    session.add_all([Chair(hall="a", number=1), Chair(hall="a", number=2), Chair(hall="b", number=3)])
    session.commit()
    stall.forget_waiting()
    session.execute(update(Chair).where(Chair.hall == "a").values(hall="c"))
    session.commit()
    assert set(stall.waiting(ChairSync)) == {
        *(("delete", key("a", number)) for number in (1, 2)),
        *(("update", key("c", number)) for number in (1, 2)),
    }


def test_the_old_bulk_calls(stall, session, ann):
    session.bulk_save_objects([Sale(buyer_id=ann.id), Sale(buyer_id=ann.id)])
    session.bulk_insert_mappings(Sale, [{"buyer_id": ann.id}, {"buyer_id": ann.id, "remark": "n"}])
    keys = list(session.scalars(select(Sale.id).order_by(Sale.id)))
    session.bulk_update_mappings(Sale, [{"id": keys[0], "total": 1}, {"id": keys[3], "total": 2}])
    session.commit()
    assert sorted(stall.waiting(SaleSync)) == sorted(
        [*[("insert", key(one)) for one in keys], ("update", key(keys[0])), ("update", key(keys[3]))]
    )


@pytest.mark.parametrize("returning", [False, True])
def test_bulk_inserts(stall, session, ann, returning):
    one, many = insert(Sale).values(buyer_id=ann.id), insert(Sale)
    several = insert(Sale).values([{"buyer_id": ann.id, "details": {}, "state": "PAID"}] * 2)
    if returning:
        names = list(
            session.scalars(many.returning(Sale.remark), [{"buyer_id": ann.id, "remark": n} for n in "ab"])
        )
        assert sorted(names) == ["a", "b"]
        found = session.execute(one.returning(Sale.id, Sale.total)).one()
        assert (found.id, found.total, len(found)) == (found[0], 0, 2)
        objects = session.scalars(several.returning(Sale)).all()
        assert [type(each) for each in objects] == [Sale, Sale]
    else:
        session.execute(many, [{"buyer_id": ann.id, "remark": n} for n in "ab"])
        session.execute(one)
        session.execute(several)
    session.execute(
        insert(Sale).from_select(
            ["buyer_id", "kind", "total", "details", "state", "removed"],
            select(Sale.buyer_id, Sale.kind, Sale.total, Sale.details, Sale.state, Sale.removed).limit(1),
        )
    )
    session.commit()
    keys = list(session.scalars(select(Sale.id)))
    assert len(keys) == 6
    assert sorted(stall.waiting(SaleSync)) == sorted(("insert", key(one)) for one in keys)


def test_inserts_that_ignore_or_update_conflicts(stall, session, ann):
    made = (postgresql if session.bind.dialect.name == "postgresql" else sqlite).insert(Buyer)
    new = uuid.uuid4()
    rows = [{"id": new, "name": "Bob"}, {"id": ann.id, "name": "no"}]
    session.execute(made.on_conflict_do_nothing(), rows)
    session.commit()
    assert stall.waiting(BuyerSync) == [("insert", key(new))]
    session.execute(
        made.on_conflict_do_update(index_elements=["id"], set_={"name": made.excluded.name}),
        [{"id": ann.id, "name": "yes"}],
    )
    session.commit()
    assert stall.waiting(BuyerSync)[1:] == [("insert", key(ann.id))]


@pytest.mark.parametrize("returning", [False, True])
def test_an_upsert_that_would_move_keys_is_refused(stall, session, sale, returning):
    other = Sale(buyer_id=sale.buyer_id)
    session.add_all([other, Line(id=1, sale_id=sale.id, amount=1)])
    session.commit()
    stall.forget_waiting()
    made = (postgresql if session.bind.dialect.name == "postgresql" else sqlite).insert(Line)
    made = made.values(id=1, sale_id=other.id, amount=2)
    if returning:
        made = made.returning(Line.id)
    excluded = made.excluded
    moving = made.on_conflict_do_update(index_elements=["id"], set_={"sale_id": excluded.sale_id})
    with pytest.raises(ConfigurationError, match="sets sale_id of a row that may be there already"):
        session.execute(moving)
    staying = {"id": excluded.id, "amount": excluded.amount}
    session.execute(made.on_conflict_do_update(index_elements=["id"], set_=staying))
    session.commit()
    assert stall.waiting(SaleSync) == [("update", key(sale.id))]


def test_an_upsert_may_set_the_key_by_which_it_finds_rows(stall, session, ann):
    made = (postgresql if session.bind.dialect.name == "postgresql" else sqlite).insert(Buyer)
    made = made.values(id=ann.id, name="Anna", vip=False)
    everything = {column.name: column for column in made.excluded}
    session.execute(made.on_conflict_do_update(index_elements=[Buyer.__table__.c.id], set_=everything))
    with pytest.raises(ConfigurationError, match="sets id of a row"):
        session.execute(made.on_conflict_do_update(index_elements=["name"], set_=everything))
    with pytest.raises(ConfigurationError, match="sets id of a row"):
        session.execute(made.on_conflict_do_update(index_elements=["id"], set_={"id": uuid.uuid4()}))
    session.commit()
    assert stall.waiting(BuyerSync) == [("insert", key(ann.id))]


@pytest.mark.parametrize("synchronize", ["auto", "evaluate", "fetch", False])
def test_an_update_of_many_names_the_rows_that_it_changed(stall, session, ann, synchronize):
    bob, eve = Buyer(name="Bob"), Buyer(name="Eve")
    session.add_all([bob, eve])
    session.commit()
    stall.forget_waiting()
    asked = update(Buyer).values(vip=True).execution_options(synchronize_session=synchronize)
    assert session.execute(asked.where(Buyer.name.in_(["Ann", "Bob"]))).rowcount == 2
    assert session.execute(asked.where(Buyer.name == "nobody")).rowcount == 0
    session.commit()
    assert sorted(stall.waiting(BuyerSync)) == sorted([("update", key(ann.id)), ("update", key(bob.id))])
    assert (ann.vip, eve.vip) == (True, False)


def test_an_update_that_returns_gives_what_it_was_asked_for(stall, session, ann):
    found = session.execute(
        update(Buyer).where(Buyer.name == "Ann").values(vip=True).returning(Buyer.name, Buyer.vip)
    )
    assert found.all() == [("Ann", True)]
    assert session.scalars(update(Buyer).where(Buyer.vip).values(name="A").returning(Buyer)).all() == [ann]
    nobody = update(Buyer).where(Buyer.name == "nobody").values(vip=True).returning(Buyer.name)
    assert session.scalars(nobody).all() == []
    assert session.scalars(delete(Buyer).where(Buyer.vip).returning(Buyer.name)).all() == ["A"]
    session.commit()
    assert [kind for kind, _key in stall.waiting(BuyerSync)] == ["update", "update", "delete"]


def test_an_update_by_key_and_one_over_another_table(stall, session, sale):
    session.execute(update(Sale), [{"id": sale.id, "remark": "n"}])
    session.execute(update(Sale).where(Sale.id == sale.id).values(remark="m"))
    found = session.execute(
        update(Sale).where(Sale.buyer_id == Buyer.id, Buyer.name == "Ann").values(total=Sale.total + 1)
    )
    assert found.rowcount == 1
    session.commit()
    assert stall.waiting(SaleSync) == [("update", key(sale.id))] * 3


def test_a_delete_of_many_and_an_old_query(stall, session, ann):
    session.add_all([Buyer(name="Bob"), Buyer(name="Eve")])
    session.commit()
    stall.forget_waiting()
    assert session.execute(delete(Buyer).where(Buyer.name > "B")).rowcount == 2
    assert session.query(Buyer).update({"vip": True}) == 1
    assert session.query(Buyer).delete() == 1
    session.commit()
    assert [kind for kind, _key in stall.waiting(BuyerSync)] == ["delete", "delete", "update", "delete"]


def test_statements_on_a_secondary_table(stall, session, sale):
    red, blue = Tag(name="red"), Tag(name="blue")
    session.add_all([red, blue])
    session.commit()
    changed = ("update", key(sale.id))
    session.execute(insert(sale_tags).values(sale_id=sale.id, tag_id=red.id))
    session.execute(
        insert(sale_tags), [{"sale_id": sale.id, "tag_id": red.id}, {"sale_id": sale.id, "tag_id": blue.id}]
    )
    session.commit()
    assert stall.waiting(SaleSync) == [changed] * 2
    stall.forget_waiting()
    session.execute(delete(sale_tags).where(sale_tags.c.tag_id == red.id))
    session.commit()
    assert stall.waiting(SaleSync) == [changed]


def test_bulk_inserts_of_a_child_class(stall, session, ann):
    session.execute(
        insert(GiftSale), [{"buyer_id": ann.id, "greeting": "a"}, {"buyer_id": ann.id, "greeting": "b"}]
    )
    session.commit()
    assert len({one for _kind, one in stall.waiting(GiftSaleSync)}) == 2
    assert [kind for kind, _key in stall.waiting(SaleSync)] == ["insert", "insert"]
    with pytest.raises(ConfigurationError, match="RETURNING"):
        session.scalars(insert(GiftSale).returning(GiftSale.id), [{"buyer_id": ann.id, "greeting": "a"}] * 2)


def test_classes_of_one_table(stall, session):
    boss, person = Boss("b"), Person("p")
    session.add_all([boss, person])
    session.commit()
    assert ("insert", key(boss.id)) in stall.waiting(BossSync)


def test_a_key_that_a_flush_changes_is_both_gone_and_new(stall, session, ann):
    old, new = ann.id, uuid.uuid4()
    ann.id = new
    session.commit()
    assert stall.waiting(BuyerSync) == [("delete", key(old)), ("update", key(new))]


def test_a_key_of_several_columns(stall, session):
    session.add_all([Chair(hall="a", number=1), Chair(hall="b", number=1)])
    session.commit()
    session.execute(update(Chair).where(Chair.hall == "b").values(taken=True))
    session.execute(delete(Chair).where(Chair.hall == "a", Chair.number == 1))
    session.commit()
    assert stall.waiting(ChairSync) == [
        ("insert", key("a", 1)),
        ("insert", key("b", 1)),
        ("update", key("b", 1)),
        ("delete", key("a", 1)),
    ]


def test_a_key_has_one_spelling_however_it_is_given(stall, session, sale):
    session.execute(update(Sale).where(Sale.id == bindparam("one")).values(total=1), {"one": sale.id})
    SaleSync.register(session, [str(sale.id)])
    BuyerSync.register(session, [str(sale.buyer_id).upper()])
    session.commit()
    assert stall.waiting(SaleSync) == [("update", key(sale.id))] * 2
    assert stall.waiting(BuyerSync) == [("update", key(sale.buyer_id))]


def test_keys_are_registered_on_a_connection_too(stall):
    with stall.engine.begin() as connection:
        ChairSync.register(connection, [("a", 1)])
    assert stall.waiting(ChairSync) == [("update", key("a", 1))]
    with pytest.raises(ConfigurationError, match="run_sync"):
        ChairSync.register(AsyncSession(), [("a", 1)])


def test_statements_on_a_connection_are_noticed_too(stall, ann):
    table = Buyer.__table__
    with stall.engine.begin() as connection:
        connection.execute(table.insert(), [{"name": "Bob"}, {"name": "Eve"}])
        connection.execute(
            table.update().where(table.c.id == bindparam("b")), [{"b": ann.id, "name": "A"}] * 2
        )
        connection.execute(table.delete().where(table.c.name == "Eve"))
    assert [kind for kind, _key in stall.waiting(BuyerSync)] == ["insert", "insert", "update", "delete"]


def test_what_could_not_be_told_is_refused_and_the_program_may_tell_it(stall, ann):
    table = Buyer.__table__
    many = table.update().where(table.c.name == bindparam("n")).values(vip=True)
    returning = table.delete().where(table.c.name == "Ann").returning(table.c.id)
    with stall.engine.connect() as connection:
        with pytest.raises(ConfigurationError, match="several sets of parameters"):
            connection.execute(many, [{"n": "Ann"}, {"n": "Bob"}])
        with pytest.raises(ConfigurationError, match=r"Session\.execute"):
            connection.execute(returning)
        keys = connection.execute(returning, execution_options={"oncehouse_sync": False}).scalars().all()
        assert keys == [ann.id]
        connection.commit()
    assert stall.waiting(BuyerSync) == []


def test_a_change_that_cannot_be_noticed_does_not_happen(stall, session):
    with stall.engine.begin() as connection:
        connection.execute(text("DROP TABLE oncehouse_sync_operations"))
    session.add(Buyer(name="Ann"))
    with pytest.raises(ConfigurationError, match="oncehouse sync init"):
        session.commit()
    session.rollback()
    assert session.scalar(select(func.count()).select_from(Buyer)) == 0


def test_of_statements_that_fail_nothing_is_kept(stall, ann):
    again = insert(Buyer.__table__).values(id=ann.id, name="Ann", vip=False)
    with stall.engine.connect() as connection:
        known = dict(connection.info)
        for _ in range(3):
            with pytest.raises(IntegrityError):
                connection.execute(again)
            connection.rollback()
        assert connection.info == known
    assert stall.waiting(BuyerSync) == []


def test_a_connection_that_the_server_ended_can_be_rolled_back(stall, ann):
    if stall.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has no server")
    with stall.engine.connect() as connection:
        connection.execute(update(Buyer).values(vip=True))
        number = connection.connection.dbapi_connection.info.backend_pid
        with stall.engine.begin() as other:
            other.execute(select(func.pg_terminate_backend(number)))
        with pytest.raises(OperationalError):
            connection.execute(update(Buyer).values(vip=True))
        connection.rollback()
        connection.execute(update(Buyer).values(vip=True))
        connection.commit()
    assert len(stall.waiting(BuyerSync)) == 1


def test_another_object_for_a_watched_table_is_refused(stall, session, ann):
    reflected = Table("buyers", MetaData(), autoload_with=stall.engine)
    for stranger in (reflected, table("buyers", column("vip"))):
        with pytest.raises(ConfigurationError, match="through another Table"):
            session.execute(update(stranger).values(vip=True))
        session.rollback()
    session.execute(update(reflected).values(vip=True), execution_options={"oncehouse_sync": False})
    session.execute(update(table("oncehouse_sync_states", column("failures"))).values(failures=0))
    session.commit()


def test_a_disabled_sync_is_left_alone(stall, session, monkeypatch):
    monkeypatch.setattr(BuyerSync, "sync_enabled", False)
    session.add(Buyer(name="Ann"))
    session.commit()
    assert stall.waiting(BuyerSync) == []


def test_changes_in_a_database_that_the_sync_does_not_read_are_refused(stall, tmp_path):
    other = create_engine(f"sqlite:///{tmp_path}/other.db")
    Buyer.metadata.create_all(other)
    with Session(stall.engine, binds={Buyer: other}) as session:
        session.add(Buyer(name="Ann"))
        with pytest.raises(ConfigurationError, match="where the change would not be found"):
            session.flush()
    other.dispose()
    configure(stall.engine.url)
    with Session(stall.engine) as session:
        session.add(Buyer(name="Ann"))
        session.commit()
    assert len(stall.waiting(BuyerSync)) == 1


@pytest.mark.parametrize(
    "options",
    [{"isolation_level": "AUTOCOMMIT"}, {"schema_translate_map": {None: "tenant"}}],
    ids=str,
)
def test_a_connection_on_which_change_and_operation_would_come_apart_is_refused(stall, options):
    with (
        stall.engine.connect().execution_options(**options) as connection,
        pytest.raises(ConfigurationError, match=r"AUTOCOMMIT|schema_translate_map"),
    ):
        connection.execute(update(Buyer).values(vip=True))


def test_async_sessions(stall, ann):
    url = stall.engine.url
    driver = "sqlite+aiosqlite" if url.get_backend_name() == "sqlite" else "postgresql+psycopg"

    async def write() -> None:
        engine = create_async_engine(url.set(drivername=driver))
        async with AsyncSession(engine) as session:
            session.add(Buyer(name="Bob"))
            await session.flush()
            await session.execute(update(Buyer).where(Buyer.name == "Ann").values(vip=True))
            names = await session.scalars(
                update(Buyer).where(Buyer.vip).values(vip=False).returning(Buyer.name)
            )
            assert names.all() == ["Ann"]
            await session.run_sync(BuyerSync.register, [ann.id])
            await session.commit()
            session.add(Buyer(name="never"))
            await session.flush()
            await session.rollback()
        await engine.dispose()

    asyncio.run(write())
    assert [kind for kind, _key in stall.waiting(BuyerSync)] == ["insert", "update", "update", "update"]


def test_the_flush_of_one_row_that_is_noticed_is_one_statement(stall, session, monkeypatch):
    monkeypatch.setattr(GiftSaleSync, "sync_enabled", False)
    run: list[str] = []

    def count(_connection, _cursor, statement, *_others):
        run.append(statement)

    ann = Buyer(name="Ann")
    session.add(ann)
    session.commit()
    stall.forget_waiting()
    event.listen(stall.engine, "before_cursor_execute", count)
    for change in (lambda: setattr(ann, "name", "Anna"), lambda: session.delete(ann)):
        change()
        session.flush()
    session.add(bob := Buyer(name="Bob"))
    session.flush()
    event.remove(stall.engine, "before_cursor_execute", count)
    if stall.engine.dialect.name == "postgresql":
        assert len([one for one in run if "SELECT" not in one]) == 3, run
    session.commit()
    assert stall.waiting(BuyerSync) == [
        ("update", key(ann.id)),
        ("delete", key(ann.id)),
        ("insert", key(bob.id)),
    ]


def test_the_same_statement_again_and_again_notes_the_key_of_each_row(stall, session, ann):
    chairs = [Chair(hall="a", number=number) for number in range(3)]
    for chair in chairs:
        session.add(chair)
        session.flush()
    for chair in chairs:
        chair.taken = True
        session.flush()
    session.commit()
    told = [("insert", key("a", n)) for n in range(3)] + [("update", key("a", n)) for n in range(3)]
    assert stall.waiting(ChairSync) == told
