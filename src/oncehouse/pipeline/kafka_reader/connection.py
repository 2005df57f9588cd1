"""A connection to Kafka inside of a task, by the network code of kafka-python: brokers, TLS, log-in, requests.

One is kept a process and cluster: the tasks that follow find it open. Nothing here waits without an end.
"""

from __future__ import annotations

import base64
import logging
import os
import ssl
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import kafka.errors as kafka_errors
from kafka.future import Future
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.structs import TopicPartition

from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.kafka_reader.access import KafkaAccess, TopicPlace
from oncehouse.pipeline.kafka_reader.record_batches import AbortedTransaction

REQUEST_SECONDS = 20.0
_CONNECT_SECONDS = 10.0
_MOST_ANSWER_BYTES = (1 << 31) - 1
_READ_COMMITTED = 1
# Requests name topics by their ids from version 13 on; the ids of brokers that have none are zero.
_LAST_VERSION_WITH_NAMES = 12
_LATEST_VERSION = 16
_THROTTLE_POLL_MILLISECONDS = 100

logging.getLogger("kafka").addHandler(logging.NullHandler())
logging.getLogger("kafka").propagate = False


@dataclass(frozen=True, kw_only=True)
class FetchAnswer:
    records: memoryview
    aborted: tuple[AbortedTransaction, ...]


class LeaderError(Exception):
    """The leader is another one, or away: worth another try after asking who leads. Its text may be empty."""


class OffsetGoneError(Exception):
    """The broker that was asked does not have the offset: no longer, or not yet."""


class Connection:
    def __init__(self, access: KafkaAccess) -> None:
        self._access = access
        self._net = NetworkSelector(slow_task_threshold_secs=0)
        self._manager = KafkaConnectionManager(
            self._net,
            bootstrap_servers=access.bootstrap_servers.split(","),
            client_id=access.client_id,
            receive_message_max_bytes=_MOST_ANSWER_BYTES,
            request_timeout_ms=int(REQUEST_SECONDS * 1000),
            security_protocol=access.security_protocol,
            ssl_context=_make_ssl_context(access) if "SSL" in access.security_protocol else None,
            sasl_mechanism=access.mechanism,
            sasl_plain_username=access.user,
            sasl_plain_password=access.password,
        )
        # A reader makes no topic, whatever the brokers allow.
        self._manager.cluster.config["allow_auto_create_topics"] = False

    def close(self) -> None:
        self._manager.close()
        self._net.close()

    def refresh(self, topic: str) -> None:
        """Learn who leads the partitions of a topic, and of those that were asked for before."""
        cluster = self._manager.cluster
        # Added without its own request for an update, which would need a loop that runs on.
        cluster._topics.add(topic)  # noqa: SLF001 - the public call starts a task of the loop
        with self._translated():
            if cluster.brokers():
                self._run(cluster.refresh_metadata)
            else:
                self._meet_first_broker()

    def _meet_first_broker(self) -> None:
        """By the addresses of the pipeline file: the first that answers, or why the last one does not."""
        failure: Exception | None = None
        for broker in self._manager.cluster.bootstrap_brokers():
            try:
                self._run(self._ask_broker, broker.node_id)
            except (kafka_errors.KafkaError, OSError) as error:
                failure = error
                self._manager.close(broker.node_id)
            else:
                return
        if failure is not None:
            raise failure

    async def _ask_broker(self, node: str) -> None:
        await self._manager.get_connection(node)
        await self._manager.cluster.refresh_metadata(node)

    def _run(self, work: Callable[..., Any], *arguments: Any) -> None:
        """With an end, which kafka-python's own call and its handshake of TLS do not have."""
        done = self._net.call_soon_with_future(work, *arguments)
        self._net.poll(timeout_ms=_CONNECT_SECONDS * 1000, future=done)
        if not done.is_done:
            raise kafka_errors.KafkaConnectionError(f"no answer within {_CONNECT_SECONDS:.0f} s")
        if done.exception is not None:
            raise done.exception

    def knows(self, place: TopicPlace) -> bool:
        leader = self._leader(place)
        return leader is not None and leader >= 0

    def _leader(self, place: TopicPlace) -> int | None:
        found: int | None = self._manager.cluster.leader_for_partition(
            TopicPartition(place.topic, place.partition)
        )
        return found

    def is_throttled(self, place: TopicPlace) -> bool:
        """Whether the leader has asked for a pause, by a quota; it is waited for a moment."""
        leader = self._leader(place)
        with self._translated():
            if leader is None or "throttle" not in self._manager.get_connection(leader).paused:
                return False
            self._net.poll(timeout_ms=_THROTTLE_POLL_MILLISECONDS)
        return True

    def send_fetch(self, place: TopicPlace, offset: int) -> Future:
        """Ask the leader for what follows an offset; `wait` has the answer."""
        leader = self._leader(place)
        if leader is None or leader < 0:
            raise LeaderError(f"{place} has no leader")
        known = self._manager.cluster.leader_epoch_for_partition(TopicPartition(place.topic, place.partition))
        topic_id = _read_topic_id(place.topic_id)
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=self._access.wait_milliseconds,
            min_bytes=1,
            max_bytes=self._access.fetch_bytes,
            isolation_level=_READ_COMMITTED,
            session_id=0,
            session_epoch=-1,
            topics=[
                FetchRequest.FetchTopic(
                    topic=place.topic,
                    topic_id=topic_id,
                    partitions=[
                        FetchRequest.FetchTopic.FetchPartition(
                            partition=place.partition,
                            current_leader_epoch=-1 if known is None else known,
                            fetch_offset=offset,
                            last_fetched_epoch=-1,
                            log_start_offset=-1,
                            partition_max_bytes=self._access.fetch_bytes,
                        )
                    ],
                )
            ],
            forgotten_topics_data=[],
            rack_id="",
            max_version=_LATEST_VERSION if topic_id.int else _LAST_VERSION_WITH_NAMES,
        )
        with self._translated():
            sent = self._manager.send(request, node_id=leader)
            # The loop writes; what comes meanwhile waits in the socket.
            self._net.poll(timeout_ms=0)
        return sent

    def wait(self, place: TopicPlace, sent: Future) -> FetchAnswer:
        """Raises LeaderError, OffsetGoneError, and errors of ours."""
        with self._translated():
            self._net.poll(timeout_ms=2 * REQUEST_SECONDS * 1000, future=sent)
            if not sent.is_done:
                raise LeaderError(f"{place}: no answer")
            if sent.exception is not None:
                raise sent.exception
        return _read_answer(place, sent.value)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (
            kafka_errors.SaslAuthenticationFailedError,
            kafka_errors.UnsupportedSaslMechanismError,
        ) as error:
            raise ConfigurationError(
                f"Kafka at {self._access.bootstrap_servers} does not let a task in ({error}). Check the user and the "
                "password in source.kafka.options."
            ) from error
        except kafka_errors.NodeNotReadyError as error:
            raise LeaderError from error  # it waits after a failure that was reported before
        except (kafka_errors.KafkaError, OSError, ValueError) as error:
            # ValueError: the log-in of kafka-python says so where a broker answers something else.
            raise LeaderError(str(error)) from error


def _make_ssl_context(access: KafkaAccess) -> ssl.SSLContext:
    """As strict as Kafka's own clients: certificates are always checked, the host's name unless it was asked for."""
    try:
        context = ssl.create_default_context(cafile=access.ca_file)
    except OSError as error:
        raise ConfigurationError(
            f"source.kafka.options: ssl.ca.location {access.ca_file!r} holds no certificates that this executor can "
            f"read: {error.strerror or error}"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = access.checks_host
    if access.certificate is not None and access.key is not None:
        # Python's ssl reads them from files only; this one is memory, and no disk ever has it.
        descriptor = os.memfd_create("oncehouse-certificate")
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{access.key}\n{access.certificate}")
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    return context


def _read_topic_id(text: str) -> uuid.UUID:
    """Kafka's own tools write it in base64 with `-` and `_`, librdkafka with `+` and `/`."""
    return uuid.UUID(bytes=base64.b64decode(f"{text}==".replace("-", "+").replace("_", "/")))


def _read_answer(place: TopicPlace, response: FetchResponse) -> FetchAnswer:
    if response.error_code:
        raise LeaderError(f"{place}: {kafka_errors.for_code(response.error_code).__name__}")
    for topic in response.responses:
        for found in topic.partitions:
            if found.partition_index == place.partition:
                if found.error_code:
                    _raise(place, kafka_errors.for_code(found.error_code))
                return FetchAnswer(
                    records=memoryview(found.records or b""),
                    aborted=tuple(
                        AbortedTransaction(producer=one.producer_id, first_offset=one.first_offset)
                        for one in found.aborted_transactions or ()
                    ),
                )
    raise LeaderError(f"{place} is not in the broker's answer")


def _raise(place: TopicPlace, error: type[Exception]) -> NoReturn:
    name = error.__name__
    if error is kafka_errors.OffsetOutOfRangeError:
        raise OffsetGoneError(name)
    if issubclass(error, kafka_errors.AuthorizationError):
        raise ConfigurationError(
            f"Kafka does not let a task read {place} ({name}). Check the user's rights (Read on the topic)."
        )
    raise LeaderError(name)


_connections: dict[tuple[KafkaAccess, int], Connection] = {}


def open_connection(access: KafkaAccess) -> Connection:
    """The one of this process, which stays open."""
    key = (access, os.getpid())
    if key not in _connections:
        for stale in [one for one in _connections if one[1] != os.getpid()]:
            # Of the process that this one was forked from, whose sockets they are.
            del _connections[stale]
        _connections[key] = Connection(access)
    return _connections[key]


def drop_connection(access: KafkaAccess) -> None:
    """After a failure: the next task opens another one."""
    if (connection := _connections.pop((access, os.getpid()), None)) is not None:
        with suppress(Exception):  # whatever state the failure left it in
            connection.close()
