"""Messages and effects that the tests of the inbox share."""

from __future__ import annotations

from sqlalchemy import Column, Connection, Engine, Integer, MetaData, Table, Text, insert, select

from oncehouse.common.database import begin
from oncehouse.messaging.inbox.tables import create_tables
from oncehouse.messaging.message import MESSAGE_ID, Message

metadata = MetaData()
effects = Table(
    "effects",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("message", Text, nullable=False),
    Column("key", Text),
    Column("worker", Text),
)


def message(message_id: str, key: str | None = "k", value: bytes = b"v", offset: int = 0) -> Message:
    return Message(
        topic="orders",
        partition=0,
        offset=offset,
        key=None if key is None else key.encode(),
        value=value,
        headers=((MESSAGE_ID, message_id.encode()),),
    )


def messages(count: int, *, keys: int) -> list[Message]:
    """Numbered, spread over the keys in turn; the id ends with the number within its key."""
    return [message(f"{at % keys}-{at // keys}", key=f"key-{at % keys}", offset=at) for at in range(count)]


def prepare(engine: Engine) -> None:
    with begin(engine, whose="test") as connection:
        create_tables(connection)
        metadata.create_all(connection)


def effect(given: Message, worker: str = "") -> object:
    """The INSERT that a handler does: a plain one, so that doing it twice shows."""
    key = None if given.key is None else given.key.decode()
    return insert(effects).values(message=given.message_id, key=key, worker=worker)


def read_effects(engine: Engine) -> list[str]:
    """Message ids in the order in which their effects were written."""
    with engine.connect() as connection:
        return list(connection.execute(select(effects.c.message).order_by(effects.c.number)).scalars())


def effects_by_key(connection: Connection) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in connection.execute(select(effects).order_by(effects.c.number)):
        found.setdefault(row.key, []).append(row.message)
    return found
