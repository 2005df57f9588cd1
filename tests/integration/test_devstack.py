"""The dev stack on stacks of its own: real processes, real kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import clickhouse_connect
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from oncehouse.devstack import stack as devstack
from oncehouse.devstack.process import is_alive, read_process
from oncehouse.devstack.stack import Stack
from oncehouse.errors import ConfigurationError, PermanentError

pytestmark = pytest.mark.servers


@pytest.fixture
def own(tmp_path):
    """A folder for a stack that this test alone uses."""
    folder = tmp_path / "dev"
    yield folder
    Stack(folder=folder).discard()
    assert not folder.exists()
    assert processes_of(folder) == []


def processes_of(folder: Path) -> list[int]:
    """Every live process whose command line names the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(folder) in command:
                found.append(int(entry.name))
    return found


def query(stack: Stack, sql: str) -> object:
    client = clickhouse_connect.get_client(host="127.0.0.1", port=stack.clickhouse.place.ports["http"])
    try:
        return client.command(sql)
    finally:
        client.close()


def test_parts_answer_after_up_and_keep_ports_and_data_over_down_and_up(own):
    stack = devstack.up(own)
    admin = AdminClient({"bootstrap.servers": stack.kafka.bootstrap_servers})
    admin.create_topics([NewTopic("kept", num_partitions=1)])["kept"].result(timeout=30)
    before = devstack.status(own)
    assert {part.part for part in before if part.ready} == {"kafka", "clickhouse"}

    assert sorted(devstack.down(own)) == ["clickhouse", "kafka"]
    assert not any(part.running for part in devstack.status(own))
    assert processes_of(own) == []
    assert devstack.down(own) == []

    devstack.up(own)
    assert [part.address for part in devstack.status(own)] == [part.address for part in before]
    again = AdminClient({"bootstrap.servers": stack.kafka.bootstrap_servers})
    assert "kept" in again.list_topics(timeout=10).topics


def test_clickhouse_keeps_its_rows_over_a_kill(own):
    stack = devstack.up(own, ["clickhouse"])
    query(stack, "CREATE DATABASE kept ENGINE = Atomic")
    query(stack, "CREATE TABLE kept.numbers (n Int64) ENGINE = MergeTree ORDER BY n")
    query(stack, "INSERT INTO kept.numbers SELECT number FROM numbers(1000)")
    killed = stack.process("clickhouse")

    stack.kill("clickhouse")
    assert stack.process("clickhouse") is None
    stack.start("clickhouse")

    assert stack.process("clickhouse") != killed
    assert query(stack, "SELECT count() FROM kept.numbers") == 1000


def test_clickhouse_logs_queries_within_moments(clickhouse_client):
    marker = f"/* {time.monotonic_ns()} */"
    clickhouse_client.command(f"SELECT 1 {marker}")
    clickhouse_client.command("SYSTEM FLUSH LOGS")
    logged = "SELECT count() FROM system.query_log WHERE type = 'QueryFinish' AND query LIKE {marker:String}"
    assert clickhouse_client.query(logged, parameters={"marker": f"SELECT 1 {marker}%"}).first_row == (1,)


def test_postgres_keeps_its_rows_over_a_kill_and_decodes_logically(own):
    import psycopg

    stack = devstack.up(own, ["postgres"])
    address = stack.postgres.url.replace("+psycopg", "")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
    stack.kill("postgres")
    stack.start("postgres")
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT n FROM kept").fetchall() == [(7,)]
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)


def test_keeper_map_tables_work_once_zookeeper_is_added(own):
    stack = devstack.up(own, ["clickhouse"])
    devstack.up(own, ["clickhouse", "zookeeper"])
    query(stack, "CREATE DATABASE keeper ENGINE = Atomic")
    query(
        stack,
        "CREATE TABLE keeper.pairs (k String, v Int64) ENGINE = KeeperMap('/pairs') PRIMARY KEY k",
    )
    query(stack, "INSERT INTO keeper.pairs VALUES ('a', 5)")
    assert query(stack, "SELECT v FROM keeper.pairs WHERE k = 'a'") == 5


def interrupt_up(folder: Path, how: signal.Signals) -> None:
    """Run `up` in a process of its own and end it as soon as its first server exists."""
    code = (
        "import sys, pathlib; from oncehouse.devstack.stack import up; "
        "up(pathlib.Path(sys.argv[1]), ['clickhouse', 'redis'])"
    )
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as starter:
        deadline = time.monotonic() + 60
        while not (folder / "run" / "clickhouse.pid").exists():
            assert starter.poll() is None, "up ended before its first server existed"
            assert time.monotonic() < deadline, "no server within a minute"
            time.sleep(0.001)
        starter.send_signal(how)
    assert starter.returncode != 0, "up was over before it was interrupted"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_up_completes_what_an_interrupted_up_began(own, how):
    interrupt_up(own, how)
    left = read_process(own / "run" / "clickhouse.pid")

    stack = devstack.up(own, ["clickhouse", "redis"])

    assert {part.part for part in stack.status() if part.ready} == {"clickhouse", "redis"}
    assert stack.process("clickhouse") == left, "the server of the interrupted up should be kept"
    assert len(processes_of(own / "clickhouse")) == 1


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_down_stops_what_an_interrupted_up_left(own, how):
    interrupt_up(own, how)
    left = read_process(own / "run" / "clickhouse.pid")
    assert is_alive(left)

    devstack.down(own)

    assert not is_alive(left)
    assert processes_of(own) == []


def note_pid(own: Path, pid: int, *, shift_ticks: int) -> None:
    """Write the pid file that a server with this pid would have written, started some ticks apart."""
    line = Path(f"/proc/{pid}/stat").read_text()
    head, _, tail = line.rpartition(") ")
    fields = tail.split()
    fields[19] = str(int(fields[19]) + shift_ticks)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text()
    (own / "run").mkdir(parents=True, exist_ok=True)
    (own / "run" / "redis.pid").write_text(f"{head}) {' '.join(fields)}\n{boot_id}")


@pytest.mark.parametrize(("shift_ticks", "survives"), [(-100, True), (0, False)])
def test_down_ends_a_process_only_if_it_is_the_one_that_was_started(own, shift_ticks, survives):
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            note_pid(own, other.pid, shift_ticks=shift_ticks)
            devstack.down(own)
            assert (other.poll() is None) is survives
        finally:
            other.kill()


def test_servers_are_out_of_reach_of_a_ctrl_c_at_the_terminal(own):
    stack = devstack.up(own, ["redis"])
    process = stack.process("redis")
    assert process is not None
    assert os.getsid(process.pid) != os.getsid(0)
    assert os.getpgid(process.pid) != os.getpgid(0)


def test_only_the_owner_can_enter_the_folder(own):
    devstack.up(own, ["redis"])
    assert own.stat().st_mode & 0o077 == 0
    assert (own / "state.json").stat().st_mode & 0o077 == 0
    assert (own / "run" / "redis.pid").stat().st_mode & 0o077 == 0


def test_a_server_that_cannot_start_is_reported_with_the_end_of_its_log(own):
    stack = devstack.up(own, ["redis"])
    stack.stop("redis")
    (own / "redis" / "data" / "appendonly.aof").write_bytes(b"this is no log of commands")

    with pytest.raises(PermanentError, match=r"(?s)redis ended after its start.*Bad file format reading"):
        stack.start("redis")

    assert processes_of(own) == []


def test_a_port_taken_by_another_program_is_named(own, tmp_path):
    import socket

    stack = devstack.up(own, ["redis"])
    stack.stop("redis")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", stack.redis.place.ports["redis"]))
        other.listen()
        with pytest.raises(ConfigurationError, match=f"Port {stack.redis.place.ports['redis']} of redis"):
            stack.start("redis")
