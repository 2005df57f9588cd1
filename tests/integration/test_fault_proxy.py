"""The proxy before ClickHouse: each fault befalls the INSERTs that it was asked for, and nothing else."""

from __future__ import annotations

from http import HTTPStatus

import numpy as np
import pyarrow as pa
import pytest

from live_pipeline import wait_until
from oncehouse.clickhouse.client import Client, connect, failure_of
from oncehouse.clickhouse.errors import Failure
from oncehouse.clickhouse.insert.repeatable_block import encode_block
from oncehouse.config.pipeline import ClickHouse
from oncehouse.devstack.proxies.fault_proxy import (
    UNTIL_TAKEN_BACK,
    FaultProxy,
    is_insert,
    is_success,
    is_whole,
)
from oncehouse.devstack.proxies.faults import (
    AnswerError,
    Close,
    CutBody,
    DelayAnswer,
    DelayRequest,
    DropAnswer,
    Fault,
    HoldBody,
)
from oncehouse.errors import OncehouseError, TransientError

ROWS = pa.record_batch({"n": pa.array(range(100_000), pa.uint64())})


@pytest.fixture
def proxy(clickhouse):
    with FaultProxy(server_port=clickhouse.place.ports["http"]) as proxy:
        yield proxy


@pytest.fixture
def client(proxy, database) -> Client:
    client = connect(ClickHouse(url=f"{proxy.url}/{database}", insert_timeout=1))
    for name in ("numbers", "others"):
        client.command(f"CREATE TABLE {name} (n UInt64) ENGINE = MergeTree ORDER BY n")
    return client


def insert(client: Client, table: str = "numbers") -> None:
    client.insert_arrow(table, ("n",), encode_block(ROWS), {"wait_end_of_query": 1})


def failure(client: Client, table: str = "numbers") -> Failure:
    with pytest.raises(OncehouseError) as raised:
        insert(client, table)
    return failure_of(raised.value)


def inserted(client: Client, table: str = "numbers") -> float:
    return client.query(f"SELECT count() FROM {table}")[0][0] / ROWS.num_rows


@pytest.mark.parametrize(
    ("fault", "arrives"),
    [
        (DropAnswer(), 1),
        (CutBody(), 0),
        (AnswerError(), 0),
        (AnswerError(status=HTTPStatus.INTERNAL_SERVER_ERROR, code=241), 0),
        (Close(), 0),
    ],
)
def test_a_fault_befalls_one_insert_whose_client_cannot_know_what_became_of_it(
    proxy, client, fault: Fault, arrives
):
    insert(client)
    assert (proxy.inserts, proxy.happened.total()) == (1, 0)
    proxy.inject(fault)
    assert failure(client).outcome_unknown
    assert proxy.happened == {type(fault): 1}
    insert(client)
    assert (proxy.inserts, proxy.happened.total()) == (3, 1)
    wait_until(lambda: inserted(client) >= 2 + arrives, "the inserts")
    assert inserted(client) == 2 + arrives


def test_an_error_has_the_code_that_was_asked_for_or_none(proxy, client):
    proxy.inject(AnswerError(status=HTTPStatus.INTERNAL_SERVER_ERROR, code=241))
    assert failure(client).code == 241
    proxy.inject(AnswerError(status=HTTPStatus.BAD_GATEWAY))
    failed = failure(client)
    assert failed.code is None
    assert "502" in failed.message


def test_a_body_cut_half_way_is_an_insert_that_failed_in_the_middle_to_the_server(proxy, client):
    def ends() -> list[tuple[str]]:
        client.command("SYSTEM FLUSH LOGS")
        return client.query(
            "SELECT type FROM system.query_log WHERE current_database = currentDatabase() "
            "AND query_kind = 'Insert' AND type != 'QueryStart'"
        )

    # More than one chunk of the client's: the server does not begin before it has the first one.
    many = pa.record_batch({"n": np.random.default_rng(1).integers(0, 1 << 60, 500_000, np.uint64)})
    proxy.inject(CutBody())
    with pytest.raises(TransientError):
        client.insert_arrow("numbers", ("n",), encode_block(many), {"wait_end_of_query": 1})
    wait_until(ends, "the end of the insert")
    assert ends() == [("ExceptionWhileProcessing",)]
    assert inserted(client) == 0


@pytest.mark.long
def test_a_held_body_leaves_the_insert_open_until_its_client_goes(proxy, client):
    proxy.inject(HoldBody())
    assert failure(client).outcome_unknown
    assert proxy.happened[HoldBody] == 1
    running = (
        "SELECT count() FROM system.processes "
        "WHERE query_kind = 'Insert' AND current_database = currentDatabase()"
    )
    wait_until(lambda: client.query(running) == [(0,)], "the end of the insert whose client went")
    assert inserted(client) == 0


def test_a_late_answer_comes(proxy, client):
    proxy.inject(DelayAnswer(seconds=0.2))
    insert(client)
    assert (proxy.happened[DelayAnswer], inserted(client)) == (1, 1)


@pytest.mark.long
def test_a_late_request_arrives_after_its_client_has_given_up(proxy, client):
    proxy.inject(DelayRequest(seconds=7))
    assert failure(client).outcome_unknown
    assert inserted(client) == 0
    wait_until(lambda: inserted(client) == 1, "the insert that came late")


def test_a_fault_befalls_as_many_inserts_as_it_was_asked_for(proxy, client):
    proxy.inject(Close(), times=2)
    for _ in range(2):
        failure(client)
    insert(client)
    assert proxy.happened[Close] == 2


def test_a_fault_befalls_all_inserts_of_its_table_until_it_is_taken_back(proxy, client):
    proxy.inject(AnswerError(), times=UNTIL_TAKEN_BACK, table="numbers")
    for _ in range(3):
        failure(client)
        insert(client, "others")
    proxy.take_back()
    insert(client)
    assert (proxy.inserts, proxy.happened[AnswerError]) == (7, 3)
    assert (inserted(client), inserted(client, "others")) == (1, 3)


def test_a_refused_insert_is_answered_and_the_next_one_loses_its_answer(proxy, client):
    proxy.inject(DropAnswer())
    assert failure(client, "missing").code == 60
    assert proxy.happened[DropAnswer] == 0
    with pytest.raises(TransientError):
        insert(client)
    assert proxy.happened[DropAnswer] == 1
    assert inserted(client) == 1


@pytest.mark.parametrize(
    ("request_line", "expected"),
    [
        (b"POST /?query=INSERT+INTO+%60events%60+FORMAT+ArrowStream HTTP/1.1\r\n", True),
        (b"POST /?database=d&query=INSERT%20INTO%20t HTTP/1.1\r\n", True),
        (b"POST /?query=SELECT+1 HTTP/1.1\r\nx: query=INSERT INTO t\r\n", False),
        (b"GET /?query=INSERT+INTO+t HTTP/1.1\r\n", False),
        (b"", False),
    ],
)
def test_insert_is_told_by_the_first_line_of_its_request(request_line, expected):
    assert is_insert(request_line) is expected


def test_answer_is_whole_only_with_its_last_byte():
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    sized = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    for answer in (chunked, sized):
        assert is_whole(answer)
        assert not any(is_whole(answer[:length]) for length in range(len(answer)))


def test_answer_with_an_exception_is_no_success():
    assert is_success(b"HTTP/1.1 200 OK\r\n\r\n")
    assert not is_success(b"HTTP/1.1 500 Internal Server Error\r\n\r\n")
    assert not is_success(b"HTTP/1.1 200 OK\r\nX-ClickHouse-Exception-Code: 60\r\n\r\n")


def send(client: Client, token: str, *numbers: int) -> None:
    block = pa.record_batch({"n": pa.array(numbers, pa.uint64())})
    client.insert_arrow(
        "numbers", ("n",), encode_block(block), {"wait_end_of_query": 1, "insert_deduplication_token": token}
    )


def test_what_was_sent_again_is_known_to_be_the_same_or_not(proxy, client):
    for token, numbers in (("a", (1, 2)), ("b", (1, 2)), ("c", (3,))):
        send(client, token, *numbers)
    assert not proxy.bodies.repeated
    send(client, "a", 1, 2)
    send(client, "b", 2, 1)
    assert proxy.bodies.repeated == {"a", "b"}
    assert proxy.bodies.changed == {"b"}


@pytest.mark.parametrize("fault", [DropAnswer(), CutBody(), AnswerError()])
def test_what_an_insert_carried_is_known_though_a_fault_befell_it(proxy, client, fault):
    proxy.inject(fault)
    with pytest.raises(OncehouseError):
        send(client, "a", *range(1000))
    send(client, "a", *range(1000))
    assert proxy.bodies.repeated == {"a"}
    assert not proxy.bodies.changed
