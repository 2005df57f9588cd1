"""A connection to Kafka inside of a task, by the network code of kafka-python: brokers, TLS, log-in, requests.

One is kept a process and cluster: the tasks that follow find it open.
"""

from __future__ import annotations

import base64
import logging
import os
import ssl
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn

import kafka.errors as kafka_errors
from kafka.future import Future
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.structs import TopicPartition

from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.kafka_reader.access import KafkaAccess, Place
from oncehouse.pipeline.kafka_reader.record_batches import Aborted

REQUEST_SECONDS = 30.0
_MOST_ANSWER_BYTES = (1 << 31) - 1
_READ_COMMITTED = 1
# By the names of topics; from 13 on by their ids, which no topic that was made anew has.
_LAST_VERSION_WITH_NAMES, _FIRST_VERSION_WITH_IDS = 12, 13
_LATEST_VERSION = 16
_WAIT_MILLISECONDS = 500

logging.getLogger("kafka").addHandler(logging.NullHandler())
logging.getLogger("kafka").propagate = False


@dataclass(frozen=True, kw_only=True)
class FetchAnswer:
    records: memoryview
    aborted: tuple[Aborted, ...]


class LeaderError(Exception):
    """The leader is another one, or away: worth another try after a look at who leads. Its text may be empty."""


class OffsetGoneError(Exception):
    """The broker no longer has the offset, or not yet."""


class Connection:
    def __init__(self, access: KafkaAccess) -> None:
        self._access = access
        self._net = NetworkSelector(slow_task_threshold_secs=0)
        self._manager = KafkaConnectionManager(
            self._net,
            bootstrap_servers=access.bootstrap_servers.split(","),
            client_id="oncehouse",
            receive_message_max_bytes=_MOST_ANSWER_BYTES,
            request_timeout_ms=int(REQUEST_SECONDS * 1000),
            security_protocol=access.security_protocol,
            ssl_context=_make_ssl_context(access) if "SSL" in access.security_protocol else None,
            sasl_mechanism=access.mechanism,
            sasl_plain_username=access.user,
            sasl_plain_password=access.password,
        )

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
                self._net.run(cluster.refresh_metadata)
            else:
                self._meet_first_broker()

    def _meet_first_broker(self) -> None:
        """By the addresses of the pipeline file: the first that answers, or why the last one does not."""
        failure: Exception | None = None
        for broker in self._manager.cluster.bootstrap_brokers():
            try:
                self._net.run(self._ask_broker, broker.node_id)
            except (kafka_errors.KafkaError, OSError) as error:
                failure = error
            else:
                return
        if failure is not None:
            raise failure

    async def _ask_broker(self, node: str) -> None:
        await self._manager.get_connection(node)
        await self._manager.cluster.refresh_metadata(node)

    def knows(self, place: Place) -> bool:
        return (self._leader(place) or -1) >= 0

    def _leader(self, place: Place) -> int | None:
        found: int | None = self._manager.cluster.leader_for_partition(
            TopicPartition(place.topic, place.partition)
        )
        return found

    def send_fetch(self, place: Place, offset: int) -> Future:
        """Ask the leader for what follows an offset; `wait` has the answer."""
        leader = self._leader(place)
        if leader is None or leader < 0:
            raise LeaderError(f"{place} has no leader")
        known = self._manager.cluster.leader_epoch_for_partition(TopicPartition(place.topic, place.partition))
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=_WAIT_MILLISECONDS,
            min_bytes=1,
            max_bytes=self._access.fetch_bytes,
            isolation_level=_READ_COMMITTED,
            session_id=0,
            session_epoch=-1,
            topics=[
                FetchRequest.FetchTopic(
                    topic=place.topic,
                    topic_id=_read_topic_id(place.topic_id),
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
            max_version=_LATEST_VERSION,
        )
        return self._manager.send(request, node_id=leader)

    def wait(self, place: Place, sent: Future) -> FetchAnswer:
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
            raise LeaderError from error  # it waits after a failure that was told before
        except (kafka_errors.KafkaError, OSError) as error:
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
        # Python's ssl reads them from files only.
        with tempfile.NamedTemporaryFile("w", prefix="oncehouse-", suffix=".pem") as file:
            file.write(f"{access.key}\n{access.certificate}")
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _read_topic_id(text: str) -> uuid.UUID:
    return uuid.UUID(bytes=base64.urlsafe_b64decode(f"{text}=="))


def _read_answer(place: Place, response: FetchResponse) -> FetchAnswer:
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
                        Aborted(producer=one.producer_id, first_offset=one.first_offset)
                        for one in found.aborted_transactions or ()
                    ),
                )
    raise LeaderError(f"{place} is not in the broker's answer")


def _raise(place: Place, error: type[Exception]) -> NoReturn:
    name = error.__name__
    if error is kafka_errors.OffsetOutOfRangeError:
        raise OffsetGoneError(f"{place}: {name}")
    if issubclass(error, kafka_errors.AuthorizationError):
        raise ConfigurationError(
            f"Kafka does not let a task read {place} ({name}). Check the user's rights (Read on the topic)."
        )
    raise LeaderError(f"{place}: {name}")


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
    """After a failure, so that the next task begins anew."""
    if (connection := _connections.pop((access, os.getpid()), None)) is not None:
        with suppress(Exception):  # whatever state the failure left it in
            connection.close()
