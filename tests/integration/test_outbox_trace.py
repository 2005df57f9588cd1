"""From a service's transaction to ClickHouse: identity by the outbox id, and where `outbox trace` finds a message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
import yaml
from confluent_kafka import Producer
from sqlalchemy import create_engine, select, update
from sqlalchemy.orm import Session

from live_pipeline import LivePipeline, encode, make_event
from oncehouse.cli.app import run_command
from oncehouse.messaging import Outbox, OutboxMessage, Relay
from oncehouse.messaging.header_encoding import decode_headers

OUTBOX = Outbox()


class Service:
    """A service with an outbox, and what a relay would do with its rows."""

    def __init__(self, live_pipeline: LivePipeline, database: str) -> None:
        self.engine = create_engine(database)
        self.database = database
        self.servers = live_pipeline.document["source"]["kafka"]["bootstrap_servers"]
        self.live_pipeline = live_pipeline
        self.file = live_pipeline.folder / "messaging.yaml"
        self.file.write_text(
            yaml.safe_dump({"kafka": {"bootstrap_servers": self.servers}, "database": database})
        )
        live_pipeline.command_line("run")  # writes the pipeline file
        self.pipeline_file = live_pipeline.folder / "pipeline.yaml"

    def add(self, values: Sequence[Any], *, rolls_back: bool = False) -> list[UUID]:
        with Session(self.engine) as session:
            messages = [
                OutboxMessage(topic=self.live_pipeline.topic, key="k", value=value) for value in values
            ]
            ids = OUTBOX.add_many(session, messages)
            if rolls_back:
                session.rollback()
            else:
                session.commit()
        return ids

    def relay(self) -> None:
        """Every row twice: by a relay that dies before it can delete them, and by the one that takes over."""
        producer = Producer({"bootstrap.servers": self.servers})
        with self.engine.connect() as connection:
            rows = connection.execute(select(OUTBOX.table).order_by(OUTBOX.table.c.seq)).all()
        for row in rows:
            headers = [*decode_headers(row.headers), ("oncehouse-id", str(row.id).encode())]
            producer.produce(row.topic, row.value, row.key, partition=0, headers=headers)
        assert producer.flush(60) == 0
        Relay(database=self.database, bootstrap_servers=self.servers).run(once=True)
        self.live_pipeline.produced += 2 * len(rows)

    def change(self, message_id: UUID, **values: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(update(OUTBOX.table).where(OUTBOX.table.c.id == message_id).values(**values))


@pytest.fixture
def service(make_pipeline, postgres_url):
    live_pipeline = make_pipeline(tables=False)
    live_pipeline.document["identity"] = {"headers": ["oncehouse-id"], "window": "60d"}
    live_pipeline.create_tables()
    service = Service(live_pipeline, postgres_url)
    with service.engine.begin() as connection:
        OUTBOX.create(connection)
    yield service
    service.engine.dispose()


def trace(service: Service, capsys, message_id: object, *more: str, code: int = 0) -> dict[str, Any]:
    pipeline = ["--pipeline", str(service.pipeline_file)]
    assert (
        run_command(["outbox", "trace", str(message_id), str(service.file), *pipeline, *more, "--json"])
        == code
    )
    return json.loads(capsys.readouterr().out)


def test_a_message_is_one_row_however_often_it_is_sent_and_is_found_at_every_stage(service, capsys):
    live_pipeline = service.live_pipeline
    same = encode(make_event(7))
    # Alike in every byte, and still two messages: the id tells them apart, not the value.
    first, second = service.add([same, same])
    (undone,) = service.add([encode(make_event(8))], rolls_back=True)
    bad, tombstone = service.add([b"no json", None])

    waiting = trace(service, capsys, first)
    assert (waiting["outbox"]["state"], waiting["outbox"]["attempts"]) == ("waiting", 0)
    assert waiting["kafka"]["places"] == []
    assert waiting["kafka"]["stopped"] is None
    assert waiting["pipeline"]["failed"] is False

    service.relay()
    # The rows have gone: the id alone tells from when on to look, and the pipeline where.
    not_read = trace(service, capsys, first, code=75)
    assert "cleaned up" in not_read["outbox"]["why"]
    assert [place["offset"] for place in not_read["kafka"]["places"]] == [0]
    assert "has no ledger yet" in not_read["pipeline"]["why"]

    live_pipeline.run()
    assert len(live_pipeline.rows()) == 2
    assert live_pipeline.counts().duplicate == 2
    assert not live_pipeline.findings()

    found = trace(service, capsys, first)
    (record,) = found["pipeline"]
    (row,) = record["record"]["rows"]
    (table,) = record["tables"]
    assert (record["record"]["fate"], row["destinations"][0]["batch"]["status"]) == ("new", "IN_CLICKHOUSE")
    assert (table["this_event"], table["rows"]) == (1, table["expected_rows"])
    (stored,) = live_pipeline.client.query(
        f"SELECT count() FROM {live_pipeline.table} WHERE _unique_id = unhex('{row['unique_id']}')"
    ).result_rows[0]
    assert stored == 1

    twice = trace(service, capsys, second, "--all")
    assert [one["record"]["fate"] for one in twice["pipeline"]] == ["new", "duplicate"]
    assert twice["kafka"]["stopped"] is None

    letter = trace(service, capsys, bad)["pipeline"][0]["record"]
    assert (letter["fate"], letter["rows"][0]["reason"].partition(":")[0]) == ("dead letter", "not_json")
    assert trace(service, capsys, tombstone)["pipeline"][0]["record"]["fate"] == "skipped"

    never = trace(service, capsys, undone)
    assert "rolled back" in never["outbox"]["why"]
    assert (never["kafka"]["places"], never["kafka"]["stopped"]) == ([], None)

    show_by_hand(service, capsys, second)

    # A row that says where it is in Kafka spares the scan.
    (marked,) = service.add([encode(make_event(9))])
    service.change(marked, sent_at=1e9, sent_partition=0, sent_offset=0)
    told = trace(service, capsys, marked)
    assert (told["kafka"]["scanned"], told["kafka"]["places"][0]["offset"]) == (0, 0)
    check_unreachable_stages(service, capsys, first)


def check_unreachable_stages(service: Service, capsys, message_id: UUID) -> None:
    """Each says so, and the rest is shown."""
    settings = yaml.safe_load(service.file.read_text())
    service.file.write_text(yaml.safe_dump(settings | {"database": "postgresql+psycopg://localhost:1/none"}))
    away = trace(service, capsys, message_id, code=75)
    assert "does not answer" in away["outbox"]["why"]
    assert away["pipeline"][0]["record"]["fate"] == "new"
    document = yaml.safe_load(service.pipeline_file.read_text())
    document["clickhouse"]["url"] = "http://127.0.0.1:1"
    service.pipeline_file.write_text(yaml.safe_dump(document))
    (record,) = trace(service, capsys, message_id, code=75)["pipeline"]
    assert record["record"]["rows"][0]["destinations"][0]["batch"]["status"] == "IN_CLICKHOUSE"
    assert record["tables"][0]["failed"] is True


def show_by_hand(service: Service, capsys, message_id: UUID) -> None:
    """As people see it."""
    arguments = [str(message_id), str(service.file), "--pipeline", str(service.pipeline_file), "--all"]
    assert run_command(["outbox", "trace", *arguments]) == 0
    shown = capsys.readouterr().out
    for words in (
        "no such row: it was sent and cleaned up",
        f"{service.live_pipeline.topic}/0/1, ",
        f"{service.live_pipeline.topic}/0/5, ",
        f"looked at all 8 messages of {service.live_pipeline.topic} from ",
        ": new in epoch 1",
        ": duplicate in epoch 1",
        "IN_CLICKHOUSE, loaded",
        "2 of the batch's 2 rows are there, 1 of them of this message",
    ):
        assert words in shown
