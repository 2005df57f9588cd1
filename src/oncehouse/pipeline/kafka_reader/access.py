"""What a task is told: which offsets of which partitions, and how to reach and log in to the brokers.

The pipeline file says it in librdkafka's words. An option that the reader does not know is refused: it might have made
a connection more secure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec

from oncehouse.common.extras import needs_extra
from oncehouse.common.kafka_client import plain_options
from oncehouse.common.kafka_security import read_pem
from oncehouse.config.pipeline import Kafka
from oncehouse.errors import ConfigurationError

_PACKAGES = ("cramjam", "crc32c", "kafka", "numba")
_MECHANISMS = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}
# How much and how long; the reader has its own ways for what they are about.
_TUNING = (
    "fetch.",
    "max.",
    "message.",
    "queued.",
    "receive.",
    "socket.",
    "reconnect.",
    "metadata.",
    "topic.",
)
_FETCH_BYTES = 4 << 20
_FETCH_LIMITS = ("fetch.max.bytes", "max.partition.fetch.bytes", "fetch.message.max.bytes")
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
    fetch_bytes: int = _FETCH_BYTES
    """The most that is asked for at a time; a larger batch comes whole all the same."""
    patience_seconds: float = 20.0
    """How long a range may bring nothing before the task fails, to be tried again."""


@dataclass(frozen=True, kw_only=True)
class Place:
    topic: str
    topic_id: str
    """As Kafka writes it: URL-safe base64."""
    partition: int

    def __str__(self) -> str:
        return f"topic {self.topic} partition {self.partition}"


@dataclass(frozen=True, kw_only=True)
class SourceRange:
    """Offsets of one partition; `source` stands for it in the column of that name."""

    place: Place
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
    options = {name: value for name, value in given.items() if not name.startswith(_TUNING)}
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
        user=_take(options, "sasl.username"),
        password=_take(options, "sasl.password"),
        ca_file=_take(options, "ssl.ca.location"),
        certificate=certificate and read_pem(certificate, "ssl.certificate.location"),
        key=key and read_pem(key, "ssl.key.location"),
        fetch_bytes=min((int(given[name]) for name in _FETCH_LIMITS if name in given), default=_FETCH_BYTES),
        checks_host=_take(options, "ssl.endpoint.identification.algorithm") != "none",
    )
    _take(options, "enable.ssl.certificate.verification", "client.id")  # always on; ours
    if options:
        raise ConfigurationError(
            f"source.kafka.reader: direct does not know source.kafka.options {', '.join(sorted(options))}; remove "
            f"them, or {_ADVICE}."
        )
    return access


def _take(options: dict[str, str], *names: str) -> str | None:
    found = [options.pop(name) for name in names if name in options]
    return found[0] if found else None
