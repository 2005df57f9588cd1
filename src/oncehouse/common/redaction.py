"""The secrets that this process has read, so that nothing it prints holds one: the last net, not the first.

Every section of a file of settings brings its secrets here when it is made. Types that hide themselves keep them out
of messages already; this catches what a driver, a library or a trace says with a secret in it. A word of a few
characters is not looked for: as a password it is no secret, and it is a part of many messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import BaseModel, SecretStr

HIDDEN = "**********"
SECRET_SETTINGS = (
    r"(?i)password|passwd|secret|token|credential|jaas|private|access[.]?key|\.key$|key\.pem$|userinfo"  # noqa: S105 - a pattern, no password
)
"""What the name of a setting that holds a secret looks like, in the words that Python and Java both read."""
_SECRET_WORD = re.compile(SECRET_SETTINGS)
_LEAST_LENGTH = 4
_LEAST_CHARACTERS = 12
_URL = re.compile(r"[a-z0-9+]+://", re.IGNORECASE)
_QUOTED_PASSWORD = re.compile(r'password\s*=\s*"((?:[^"\\]|\\.)*)"', re.IGNORECASE)

_known: set[str] = set()


def is_secret_setting(name: str) -> bool:
    """Whether a setting of Kafka or Spark holds a secret, by its name."""
    return _SECRET_WORD.search(name) is not None


def reveal(value: str | SecretStr) -> str:
    """The plain text of a setting, for the driver that needs it and for no other use."""
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def hide_credentials(text: str) -> str:
    """A URL or path without the credentials that stand before its host."""
    return re.sub(r"(?<=://)[^@\s]*:[^@\s]*@", f"{HIDDEN}@", text)


def remember(secret: str) -> None:
    """Keep a secret out of all that is printed from now on, as it stands and as programs spell it.

    Of a URL only the passwords are secret: messages have to name the database that they are about.
    """
    for part in set(_url_passwords(secret)) if _URL.match(secret) else {secret, *_jaas_passwords(secret)}:
        if len(part) >= (_LEAST_CHARACTERS if part.isalpha() else _LEAST_LENGTH):
            _known.update({part, repr(part)[1:-1], ascii(part)[1:-1]})


def remember_section(section: BaseModel) -> None:
    """All that a section hides: values of secret types, settings of secret names, credentials in URLs."""
    for value in section.__dict__.values():
        for secret in _secrets_in(value):
            remember(secret)


def redact(text: str) -> str:
    """The text without any secret; the longest first, so that no rest of one is left behind."""
    for secret in sorted((known for known in _known if known in text), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _secrets_in(value: Any) -> Iterable[str]:
    match value:
        case SecretStr():
            yield value.get_secret_value()
        case str() if _URL.match(value):
            yield from _url_passwords(value)
        case Mapping():
            for name, inner in value.items():
                if isinstance(name, str) and isinstance(inner, str) and is_secret_setting(name):
                    yield inner
                else:
                    yield from _secrets_in(inner)


def _jaas_passwords(secret: str) -> Iterable[str]:
    """An error of a driver may have less than the whole line."""
    for found in _QUOTED_PASSWORD.finditer(secret):
        yield found[1]
        yield re.sub(r"\\(.)", r"\1", found[1])


def _url_passwords(text: str) -> Iterable[str]:
    try:
        parts = urlsplit(text)
        password = parts.password
    except ValueError:
        return
    options = [value for name, value in parse_qsl(parts.query) if is_secret_setting(name)]
    for found in (password, *options):
        if found:
            yield found
            yield unquote(found)
