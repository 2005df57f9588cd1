"""What can befall one INSERT between a client and ClickHouse, as the fault proxy plays it."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus


@dataclass(frozen=True, kw_only=True)
class DropAnswer:
    """The server does the INSERT, the client never gets the answer. One that the server refuses does not count."""

    reset: bool = False
    """The client's connection is torn down instead of ended in order."""


@dataclass(frozen=True, kw_only=True)
class CutBody:
    """The connection ends after half of the body, on both sides."""


@dataclass(frozen=True, kw_only=True)
class HoldBody:
    """Half of the body goes on, then nothing more until the client goes away."""


@dataclass(frozen=True, kw_only=True)
class DelayRequest:
    """The server gets the INSERT late, also when the client has given up by then."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class HoldRequest:
    """The server gets the INSERT when the proxy releases it, whatever became of the client by then."""


@dataclass(frozen=True, kw_only=True)
class DelayAnswer:
    """The server does the INSERT at once, the client gets the answer late."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class AnswerError:
    """The server gets nothing, the client an error: a gateway's, or with a code one of ClickHouse itself."""

    status: HTTPStatus = HTTPStatus.SERVICE_UNAVAILABLE
    code: int | None = None


@dataclass(frozen=True, kw_only=True)
class Close:
    """The connection ends as soon as the INSERT begins; the server gets nothing."""


Fault = DropAnswer | CutBody | HoldBody | DelayRequest | HoldRequest | DelayAnswer | AnswerError | Close
