"""What INSERTs carried, as the fault proxy saw them pass: a hash of each body that came to its end, by its token.

The body is hashed as it stands on the line, cut into chunks by the client as it is. One that was cut off says nothing
of what was meant to be sent, and is not counted.
"""

from __future__ import annotations

import hashlib
import threading
from urllib.parse import parse_qs, urlsplit

_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"


class InsertBody:
    """One request's body while it passes."""

    def __init__(self) -> None:
        self._head = b""
        self._in_head = True
        self._hash = hashlib.sha256()
        self._bytes = 0
        self._tail = b""

    def add(self, chunk: bytes) -> None:
        if self._in_head:
            self._head += chunk
            if (end := self._head.find(_HEAD_END)) < 0:
                return
            chunk, self._head = self._head[end + len(_HEAD_END) :], self._head[:end]
            self._in_head = False
        self._hash.update(chunk)
        self._bytes += len(chunk)
        self._tail = (self._tail + chunk)[-len(_LAST_CHUNK) :]

    @property
    def is_whole(self) -> bool:
        if self._in_head:
            return False
        head = self._head.lower()
        if b"\r\ntransfer-encoding: chunked" in head:
            return self._tail == _LAST_CHUNK
        lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
        return bool(lengths) and self._bytes >= int(lengths[0])

    @property
    def token(self) -> str:
        """Under which the server takes a repeat for a repeat; "" where none was sent."""
        target = self._head.split(b"\r\n", 1)[0].split(b" ")[1].decode("latin-1")
        return parse_qs(urlsplit(target).query).get("insert_deduplication_token", [""])[0]

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


class InsertBodies:
    """All bodies that passed; those of one token have to be the same."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, list[str]] = {}

    def add(self, body: InsertBody) -> None:
        if token := body.token:
            with self._lock:
                self._seen.setdefault(token, []).append(body.sha256)

    @property
    def repeated(self) -> set[str]:
        """Tokens under which more than one body came to its end."""
        with self._lock:
            return {token for token, bodies in self._seen.items() if len(bodies) > 1}

    @property
    def changed(self) -> set[str]:
        """Tokens whose bodies were not the same bytes each time."""
        with self._lock:
            return {token for token, bodies in self._seen.items() if len(set(bodies)) > 1}
