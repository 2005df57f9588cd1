"""The connection to ClickHouse over HTTP: one thin client, whose failures are oncehouse's own errors.

Holds: a client costs nothing until its first call and travels to Spark's workers by pickling; workers of
one process share the driver's connection pool; no session unless the caller names one, so calls may run in parallel; an
INSERT is sent once and never again by any layer below, and not after its deadline; no message holds the password. What
to send is its callers' part.
"""

from __future__ import annotations

import logging
import math
import os
import re
import ssl
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import clickhouse_connect
import urllib3
import urllib3.exceptions as transport
from clickhouse_connect.driver import exceptions as driver
from clickhouse_connect.driver.external import ExternalData
from clickhouse_connect.driver.httpclient import HttpClient

from oncehouse.clickhouse.complete_results import WHOLE_ANSWERS
from oncehouse.clickhouse.error_codes import ErrorCode
from oncehouse.clickhouse.errors import Failure, FailureKind, classify
from oncehouse.clickhouse.identifiers import quote, quote_table
from oncehouse.clickhouse.insert.send_guard import guard, guard_sends
from oncehouse.clickhouse.server_names import report_server_names
from oncehouse.errors import ConfigurationError, OncehouseError, PermanentError, TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    import pyarrow as pa

    from oncehouse.clickhouse.insert.deadline import Deadline
    from oncehouse.config.pipeline import ClickHouse

# Every failure is raised, so the driver's own log lines would only say it twice.
logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())

_Answer = TypeVar("_Answer")

CHECK_COMMAND = "oncehouse check"
_CHUNK_BYTES = 1 << 20
_PING_SECONDS = 3.0
# Bad gateway, service unavailable, gateway timeout: ClickHouse itself never answers a ping with them.
_FROM_A_PROXY = {502, 503, 504}
# Answers decide what is inserted: none may be an old one, or a part of one that a profile lets pass for the whole.
_HONEST: Mapping[str, str | int] = {"async_insert": 0, "use_query_cache": 0, **WHOLE_ANSWERS}
_DRIVER_PREFIX = re.compile(
    r"^Received ClickHouse exception, code: \d+, server response: | \(for url [^)]*\)$|\bHTTPS?Connection\([^)]*\): "
)
_DRIVER_ERRORS = (driver.Error, transport.HTTPError, OSError)


class Client:
    """What oncehouse asks of ClickHouse. Raises TransientError, PermanentError or ConfigurationError."""

    def __init__(
        self,
        config: ClickHouse,
        check_command: str | None = CHECK_COMMAND,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`check_command` is what a person runs to find out what is wrong with the tables.

        None is for programs that give the address as an argument, not in a file with a section `clickhouse`.
        `settings` go along with each statement that does not set them itself.
        """
        self.config = config
        self.check_command = check_command
        self._settings = dict(settings or {})

    def __reduce__(self) -> tuple[type[Client], tuple[ClickHouse, str | None, dict[str, Any]]]:
        return Client, (self.config, self.check_command, self._settings)

    def with_settings(self, settings: Mapping[str, Any]) -> Client:
        """The same connection, with settings for all its statements."""
        return Client(self.config, self.check_command, {**self._settings, **settings})

    @property
    def address(self) -> str:
        parts = urlsplit(self.config.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def database(self) -> str:
        """The database of table names that do not name one."""
        return _database(urlsplit(self.config.url)) or "default"

    @property
    def insert_timeout_seconds(self) -> float:
        return self.config.insert_timeout

    def query(
        self,
        sql: str,
        parameters: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Rows of a SELECT; values are bound to `{name:Type}` in the text."""
        result = self._call(
            lambda http: http.query(
                sql, parameters=dict(parameters or {}), settings={**self._settings, **(settings or {})}
            )
        )
        return [tuple(row) for row in result.result_rows]

    def query_arrow(
        self,
        sql: str,
        parameters: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> pa.Table:
        """The columns of a SELECT, for answers of many rows."""
        return self._call(
            lambda http: http.query_arrow(
                sql, parameters=dict(parameters or {}), settings={**self._settings, **(settings or {})}
            )
        )

    def query_over(self, sql: str, *, name: str, structure: str, stream: pa.Buffer) -> list[tuple[Any, ...]]:
        """Rows of a SELECT over an Arrow stream that is sent along under a name; asks for no further grant."""
        sent = ExternalData(file_name=name, data=stream.to_pybytes(), fmt="ArrowStream", structure=structure)
        result = self._call(lambda http: http.query(sql, settings=self._settings, external_data=sent))
        return [tuple(row) for row in result.result_rows]

    def command(
        self,
        sql: str,
        parameters: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> object:
        """Run a statement; a single value that it answers is returned."""
        return self._call(
            lambda http: http.command(
                sql, parameters=dict(parameters or {}), settings={**self._settings, **(settings or {})}
            )
        )

    def insert_arrow(
        self,
        table: str,
        columns: tuple[str, ...],
        stream: pa.Buffer,
        settings: Mapping[str, Any],
        deadline: Deadline | None = None,
    ) -> None:
        """Send one INSERT with an Arrow stream as its body, exactly once, or not at all after the deadline."""
        quoted_columns = [quote(column) for column in columns]
        self._insert(table, quoted_columns, stream, settings, "ArrowStream", deadline)

    def insert_lines(
        self, table: str, lines: pa.Buffer, settings: Mapping[str, Any], deadline: Deadline | None = None
    ) -> None:
        """Send one INSERT with JSON objects, one a line, as its body, in the same way."""
        self._insert(table, None, lines, settings, "JSONEachRow", deadline)

    def _insert(
        self,
        table: str,
        quoted_columns: list[str] | None,
        body: pa.Buffer,
        settings: Mapping[str, Any],
        form: str,
        deadline: Deadline | None,
    ) -> None:
        quoted_table = quote_table(table)
        with guard_sends(deadline, in_flight_seconds=self.insert_timeout_seconds):
            self._call(
                lambda http: http.raw_insert(
                    quoted_table, quoted_columns, _in_chunks(body), dict(settings), fmt=form
                )
            )

    def knows_setting(self, name: str) -> bool:
        return self._call(lambda http: name in http.server_settings)

    def now(self) -> float:
        """Seconds since 1970 on the server's clock."""
        return float(self.query("SELECT toUnixTimestamp64Micro(now64(6))")[0][0]) / 1e6

    def server_version(self) -> str:
        """Also the cheapest way to find out whether the server answers and lets the user in."""
        return self._call(lambda http: http.server_version or "")

    def find_trouble(self) -> str | None:
        """Why the server does not answer, whatever it would say; one that is frozen does not, and that is soon known.

        What a proxy says in the place of a server that is away is no answer of the server.
        """
        try:
            http = _open(self.config, os.getpid())
            answer = http.http.request("GET", f"{http.url}/ping", timeout=_PING_SECONDS, retries=False)
        except _DRIVER_ERRORS:
            return "no answer to a ping"
        return f"HTTP {answer.status} to a ping" if answer.status in _FROM_A_PROXY else None

    def drop_connections(self) -> None:
        """Let the next call open a new connection, as another process would."""
        self._call(lambda http: http.http.clear())

    def _call(self, call: Callable[[HttpClient], _Answer]) -> _Answer:
        try:
            http = _open(self.config, os.getpid())
        except _DRIVER_ERRORS as error:
            # A port of another protocol may answer or reset the connection; nothing but a read was asked for.
            self._raise(replace(classify(error), outcome_unknown=False), error)
        try:
            return call(http)
        except _DRIVER_ERRORS as error:
            self._raise(classify(error), error)

    def _raise(self, failure: Failure, error: Exception) -> NoReturn:
        raise error_class(failure)(_say(failure, self.config, self.address, self.check_command)) from error


def connect(config: ClickHouse, check_command: str | None = CHECK_COMMAND) -> Client:
    """A client for the server of the pipeline file. It connects at its first call."""
    return Client(config, check_command)


def failure_of(error: OncehouseError) -> Failure:
    """The judgement behind an error that a client raised."""
    cause = error.__cause__
    if isinstance(cause, _DRIVER_ERRORS):
        return classify(cause)
    kind = FailureKind.TRANSIENT if isinstance(error, TransientError) else FailureKind.PERMANENT
    return Failure(kind=kind, message=str(error), outcome_unknown=False)


def error_class(failure: Failure) -> type[OncehouseError]:
    match failure.kind:
        case FailureKind.TRANSIENT:
            return TransientError
        case FailureKind.CONFIGURATION:
            return ConfigurationError
        case FailureKind.PERMANENT | FailureKind.UNLISTED:
            return PermanentError


@lru_cache(maxsize=8)
def _open(config: ClickHouse, _process: int) -> HttpClient:
    """One driver a server and process: a forked worker must not share its parent's sockets."""
    parts, (host, port) = urlsplit(config.url), config.address
    _check_trust(config)
    client = clickhouse_connect.get_client(
        interface=parts.scheme,
        host=host,
        port=port,
        database=_database(parts) or "__default__",
        username=config.user,
        password=config.password.get_secret_value(),
        verify=config.verify_tls,
        ca_cert=config.ca_file,
        connect_timeout=max(1, math.ceil(config.connect_timeout)),
        send_receive_timeout=max(1, math.ceil(config.insert_timeout)) + 5,
        compress=False,
        autogenerate_session_id=False,
        dedicated_pool=True,
    )
    if not isinstance(client, HttpClient):
        raise ConfigurationError(f"clickhouse.url {config.url} does not lead to ClickHouse's HTTP interface")
    # urllib3 would repeat any request, inserts too, after some errors of TLS and of proxies.
    client.http_retries = False
    client.valid_transport_settings = {*client.valid_transport_settings, "close_session"}
    guard(client.http)
    report_server_names(client)
    for name, value in _HONEST.items():
        known = client.server_settings.get(name)
        if known is not None and not known.readonly:
            client.set_client_setting(name, value)
    return client


def _check_trust(config: ClickHouse) -> None:
    """Refuse certificates that cannot be read; the driver would take them for a server that is away."""
    if not config.verify_tls:
        urllib3.disable_warnings(transport.InsecureRequestWarning)  # it was asked for
    if config.ca_file is None:
        return
    try:
        ssl.create_default_context(cafile=config.ca_file)
    except OSError as error:
        raise ConfigurationError(
            f"clickhouse.ca_file {config.ca_file!r} holds no certificates that can be read: "
            f"{error.strerror or error}. Name a file of certificates in PEM."
        ) from error


def _in_chunks(stream: pa.Buffer) -> Generator[bytes, None, None]:
    """The body as a generator, for two reasons.

    The driver (clickhouse-connect 1.12) repeats an insert by itself when the connection is reset, but only
    if its body is bytes. And a socket's timeout spans a whole send: a large body on a slow line would
    overrun it, one chunk of it does not.
    """
    for start in range(0, stream.size, _CHUNK_BYTES):
        yield stream.slice(start, min(_CHUNK_BYTES, stream.size - start)).to_pybytes()


def _database(parts: SplitResult) -> str:
    return unquote(parts.path.strip("/"))


def _say(failure: Failure, config: ClickHouse, address: str, check_command: str | None) -> str:
    message = essence(failure.message)
    if secret := config.password.get_secret_value():
        message = message.replace(secret, "***")
    return f"ClickHouse at {address} (user {config.user!r}): {message}\n{_advise(failure, check_command)}"


def essence(message: str) -> str:
    """What the server or the connection said, without the driver's frame around it and advice of others."""
    text = _DRIVER_PREFIX.sub("", message.partition("\n\n")[0]).strip()
    return text or message


def _advise(failure: Failure, check_command: str | None) -> str:
    of = "" if check_command is None else "clickhouse."
    match failure.kind:
        case FailureKind.TRANSIENT if not failure.outcome_unknown and failure.code is None:
            return f"Check that the server runs and that {of}url names its HTTP port (often 8123 or 8443)."
        case FailureKind.TRANSIENT:
            return "This may pass by itself; the same call can be tried again."
        case FailureKind.CONFIGURATION if failure.code is None:
            return f"Check {of}url, {of}verify_tls and {of}ca_file."
        case FailureKind.CONFIGURATION if failure.code == ErrorCode.UNKNOWN_DATABASE:
            where = "url (of model sync: db_name)" if check_command is None else "clickhouse.url"
            return f"Create the database, or correct its name: in {where}, or before the dot in the table's name."
        case FailureKind.CONFIGURATION:
            return f"Check {of}user and {of}password, and the user's grants and settings profile."
        case FailureKind.PERMANENT | FailureKind.UNLISTED:
            next_step = (
                f"run `{check_command}` to see what does not fit"
                if check_command
                else "look at what does not fit"
            )
            return f"Trying again will not help by itself; {next_step}."
