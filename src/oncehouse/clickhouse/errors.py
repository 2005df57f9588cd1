"""What a failed call to ClickHouse means: may the same call succeed later, and can rows have arrived?

Pure classification of the driver's exceptions: `client.py` raises, `insert/insert_batch.py` decides about the batch.
Two rules keep rows safe where the lists end:

- An outcome counts as unknown unless the failure can only happen before the first row is written. Being
  wrong that way costs one look at the table; being wrong the other way could double rows.
- A code that is on no list is UNLISTED: tried again a few times, then parked. Giving up at once would park
  batches in every incident of a kind not listed here; trying for ever would hide a batch that needs a person.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from enum import StrEnum

import urllib3.exceptions as transport
from clickhouse_connect.driver import exceptions as driver

from oncehouse.clickhouse import error_codes


class FailureKind(StrEnum):
    TRANSIENT = "transient"
    PERMANENT = "permanent"
    CONFIGURATION = "configuration"
    UNLISTED = "unlisted"


@dataclass(frozen=True, kw_only=True)
class Failure:
    kind: FailureKind
    message: str
    code: int | None = None
    name: str = ""
    outcome_unknown: bool = True
    """Rows of the failed insert may be in the table."""
    too_many_parts: bool = False
    """The table asks for fewer, larger inserts."""


_STATUS = re.compile(r"HTTP status (\d{3})")
_CODE_IN_BODY = re.compile(r"\bCode:\s*(\d+)")
_TOO_MANY_PARTITIONS = "Too many partitions for single INSERT block"
_NOT_TLS = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER", "UNSUPPORTED_PROTOCOL")


def classify(error: BaseException) -> Failure:
    """Classify an exception of the driver or of the connection below it."""
    if isinstance(error, driver.Error):
        return _classify_driver_error(error)
    return _classify_transport(error)


def classify_code(code: int, message: str, name: str = "") -> Failure:
    """Classify an exception that ClickHouse itself reported, by its code."""
    if code == error_codes.ErrorCode.TOO_MANY_PARTS and _TOO_MANY_PARTITIONS in message:
        # The code of too many parts, but here the batch's own rows spread too wide: waiting will not help.
        return Failure(kind=FailureKind.PERMANENT, code=code, name=name, message=message)
    if code in error_codes.CONFIGURATION:
        kind = FailureKind.CONFIGURATION
    elif code in error_codes.TRANSIENT:
        kind = FailureKind.TRANSIENT
    elif code in error_codes.PERMANENT:
        kind = FailureKind.PERMANENT
    else:
        kind = FailureKind.UNLISTED
    return Failure(
        kind=kind,
        code=code,
        name=name,
        message=message,
        outcome_unknown=code not in error_codes.BEFORE_WRITING,
        too_many_parts=code == error_codes.ErrorCode.TOO_MANY_PARTS,
    )


def classify_status(status: int, message: str) -> Failure:
    """Classify an answer without a ClickHouse code: it comes from a proxy, or from another program."""
    if status in {408, 425, 429} or status >= 500:
        # A gateway may have passed the insert on before it gave up.
        return Failure(kind=FailureKind.TRANSIENT, message=message)
    # 413: the body is too large for a proxy
    kind = FailureKind.PERMANENT if status == 413 else FailureKind.CONFIGURATION
    return Failure(kind=kind, message=message, outcome_unknown=False)


def _classify_driver_error(error: driver.Error) -> Failure:
    message = str(error)
    code = error.code
    if code is None and (found := _CODE_IN_BODY.search(message)):
        code = int(found[1])
    if code is not None:
        return classify_code(code, message, error.name or "")
    if isinstance(error.__cause__, transport.HTTPError | OSError):
        return _classify_transport(error.__cause__)
    if found := _STATUS.search(message):
        return classify_status(int(found[1]), message)
    if isinstance(error, driver.ProgrammingError | driver.DataError | driver.NotSupportedError):
        # The driver refused the call itself: nothing was sent.
        return Failure(kind=FailureKind.PERMANENT, message=message, outcome_unknown=False)
    return Failure(kind=FailureKind.TRANSIENT, message=message)


def _classify_transport(error: BaseException) -> Failure:
    if isinstance(error, transport.MaxRetryError) and error.reason is not None:
        return _classify_transport(error.reason)
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, transport.SSLError | ssl.SSLError) and any(word in message for word in _NOT_TLS):
        return Failure(kind=FailureKind.CONFIGURATION, message=message, outcome_unknown=False)
    if isinstance(error, transport.NewConnectionError | transport.ConnectTimeoutError):
        return Failure(kind=FailureKind.TRANSIENT, message=message, outcome_unknown=False)
    return Failure(kind=FailureKind.TRANSIENT, message=message)
