"""What a task gets: which offsets of which partitions, and how to reach and log in to the brokers.

The pipeline file says it in librdkafka's words. An option that the reader does not know is refused: it might have made
a connection more secure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

from oncehouse.common.extras import needs_extra
from oncehouse.common.kafka_client import plain_options
from oncehouse.common.kafka_security import read_pem
from oncehouse.config.pipeline import Kafka
from oncehouse.errors import ConfigurationError

_PACKAGES = ("cramjam", "crc32c", "kafka", "numba")
_MECHANISMS = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}
# Sizes and times of librdkafka's own machinery, which the reader has not.
_UNUSED = {
    *("fetch.min.bytes", "fetch.error.backoff.ms", "fetch.queue.backoff.ms", "max.poll.records"),
    *("queued.min.messages", "queued.max.messages.kbytes", "message.max.bytes", "receive.message.max.bytes"),
    *("socket.timeout.ms", "socket.keepalive.enable", "socket.connection.setup.timeout.ms"),
    *("socket.send.buffer.bytes", "socket.receive.buffer.bytes", "socket.nagle.disable"),
    *("reconnect.backoff.ms", "reconnect.backoff.max.ms", "metadata.max.age.ms"),
    *("max.poll.interval.ms", "session.timeout.ms", "topic.metadata.refresh.interval.ms"),
}
_FETCH_BYTES = 4 << 20
_FETCH_LIMITS = ("fetch.max.bytes", "max.partition.fetch.bytes", "fetch.message.max.bytes")
_WAITS = ("fetch.wait.max.ms", "fetch.max.wait.ms")
_WAIT_MILLISECONDS = 500
_MOST = (1 << 31) - 1
_ADVICE = "set source.kafka.reader to connector"


@dataclass(frozen=True, kw_only=True)
class KafkaAccess:
    """How a task reaches Kafka; it travels with the task."""

    bootstrap_servers: str
    security_protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    certificate: str | None = field(default=None, repr=False)
    """Of the client, in PEM, and its key: read on the driver."""
    key: str | None = field(default=None, repr=False)
    checks_host: bool = True
    client_id: str = "oncehouse"
    wait_milliseconds: int = _WAIT_MILLISECONDS
    """How long a broker may wait for a first record."""
    fetch_bytes: int = _FETCH_BYTES
    """The most that is asked for at a time; a larger batch comes whole all the same."""
    patience_seconds: float = 60.0
    """How long a range may bring nothing before the task fails, to be tried again."""


@dataclass(frozen=True, kw_only=True)
class TopicPlace:
    topic: str
    topic_id: str
    """As Kafka writes it, in base64."""
    partition: int

    def __str__(self) -> str:
        return f"topic {self.topic} partition {self.partition}"


@dataclass(frozen=True, kw_only=True)
class SourceRange:
    """Offsets of one partition; `source` stands for it in the column of that name."""

    place: TopicPlace
    source: int
    start: int
    end: int


def make_access(kafka: Kafka) -> KafkaAccess:
    """Raises ConfigurationError for what only the connector can do, MissingExtraError where it is not installed."""
    with needs_extra("direct", "source.kafka.reader: direct"):
        for package in _PACKAGES:
            if find_spec(package) is None:
                raise ModuleNotFoundError(name=package)
    given = plain_options(kafka.options)
    options = {name: value for name, value in given.items() if name not in _UNUSED}
    mechanism = _take(options, "sasl.mechanisms", "sasl.mechanism")
    if mechanism is not None and mechanism not in _MECHANISMS:
        raise ConfigurationError(
            f"source.kafka.reader: direct cannot log in by {mechanism}, only by {', '.join(sorted(_MECHANISMS))}; "
            f"{_ADVICE}."
        )
    certificate, key = _take(options, "ssl.certificate.location"), _take(options, "ssl.key.location")
    access = KafkaAccess(
        bootstrap_servers=kafka.bootstrap_servers,
        security_protocol=(_take(options, "security.protocol") or "PLAINTEXT").upper(),
        mechanism=mechanism,
        user=_escape_user(_take(options, "sasl.username"), mechanism),
        password=_take(options, "sasl.password"),
        ca_file=_take(options, "ssl.ca.location"),
        certificate=certificate and read_pem(certificate, "ssl.certificate.location"),
        key=key and read_pem(key, "ssl.key.location"),
        client_id=_take(options, "client.id") or KafkaAccess.client_id,
        wait_milliseconds=min(_take_numbers(options, _WAITS), default=_WAIT_MILLISECONDS),
        fetch_bytes=min(_take_numbers(options, _FETCH_LIMITS), default=_FETCH_BYTES),
        checks_host=_take(options, "ssl.endpoint.identification.algorithm") != "none",
    )
    _take(options, "enable.ssl.certificate.verification")  # always on
    if options:
        raise ConfigurationError(
            f"source.kafka.reader: direct does not know source.kafka.options {', '.join(sorted(options))}; remove "
            f"them, or {_ADVICE}."
        )
    return access


def _take(options: dict[str, str], *names: str) -> str | None:
    found = [options.pop(name) for name in names if name in options]
    return found[0] if found else None


def _take_numbers(options: dict[str, str], names: Sequence[str]) -> list[int]:
    found = []
    for name in names:
        if (value := _take(options, name)) is None:
            continue
        if not value.isascii() or not value.isdecimal() or not 0 < int(value) <= _MOST:
            raise ConfigurationError(
                f"source.kafka.options: {name} {value!r} must be a whole number from 1 to {_MOST}."
            )
        found.append(int(value))
    return found


def _escape_user(user: str | None, mechanism: str | None) -> str | None:
    """SCRAM has its own signs for two characters; kafka-python sends the name as it gets it."""
    if user is None or mechanism == "PLAIN":
        return user
    return user.replace("=", "=3D").replace(",", "=2C")
