"""Messages about the last action, shown once on the page that the user is redirected to."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request

_MOST = 200
_NAME = "told"


class FlashMessages:
    """Kept in memory; the URL holds the key of a message and never its text, so that no link can forge a message."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, str] = OrderedDict()

    def leave(self, text: str, path: str) -> str:
        """The URL that shows the message."""
        name = secrets.token_urlsafe(9)
        self._texts[name] = text
        while len(self._texts) > _MOST:
            self._texts.popitem(last=False)
        return f"{path}?{_NAME}={name}"

    def take(self, request: Request) -> str | None:
        return self._texts.pop(request.query_params.get(_NAME, ""), None)
