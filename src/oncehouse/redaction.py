"""The secrets that this process has read, so that nothing it prints holds one: the last net, not the first.

Every section of a file of settings brings its secrets here when it is made. Types that hide themselves keep them out
of messages already; this catches what a driver, a library or a trace says with a secret in it. A word of a few
letters is not looked for: as a password it is no secret, and it is a part of many messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, SecretStr

from oncehouse.config_values import HIDDEN, is_secret_setting

_LEAST_LENGTH = 4
_LEAST_LETTERS = 12
_QUOTED_PASSWORD = re.compile(r'password\s*=\s*"((?:[^"\\]|\\.)*)"', re.IGNORECASE)

_known: set[str] = set()


def remember(secret: str) -> None:
    """Keep a secret out of all that is printed from now on, as it stands and as programs spell it."""
    for part in {secret, *_parts(secret)}:
        if len(part) >= (_LEAST_LETTERS if part.isalpha() else _LEAST_LENGTH):
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
        case str() if "://" in value and "@" in value:
            yield from _url_passwords(value)
        case Mapping():
            for name, inner in value.items():
                if isinstance(name, str) and isinstance(inner, str) and is_secret_setting(name):
                    yield inner
                else:
                    yield from _secrets_in(inner)


def _parts(secret: str) -> Iterable[str]:
    """A driver tells less than the whole: the password of a URL, or of a line of JAAS."""
    yield from _url_passwords(secret)
    for found in _QUOTED_PASSWORD.finditer(secret):
        yield found[1]
        yield re.sub(r"\\(.)", r"\1", found[1])


def _url_passwords(text: str) -> Iterable[str]:
    if "://" not in text:
        return
    try:
        password = urlsplit(text).password
    except ValueError:
        return
    if password:
        yield password
        yield unquote(password)
