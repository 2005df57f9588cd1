"""What was just done, told once on the page that a person is sent to afterwards."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request

_MOST = 200
_NAME = "told"


class Notes:
    """Kept in memory; the address holds a name for the note and never its text, so that nobody can write it for us."""

    def __init__(self) -> None:
        self._notes: OrderedDict[str, str] = OrderedDict()

    def leave(self, text: str, path: str) -> str:
        """The address under which the note is shown."""
        name = secrets.token_urlsafe(9)
        self._notes[name] = text
        while len(self._notes) > _MOST:
            self._notes.popitem(last=False)
        return f"{path}?{_NAME}={name}"

    def take(self, request: Request) -> str | None:
        return self._notes.pop(request.query_params.get(_NAME, ""), None)
