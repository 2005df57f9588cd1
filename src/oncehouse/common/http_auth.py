"""Access over HTTP: the address to listen on, the host names that requests may use, and the token.

Pure. This machine alone by default; any other address needs a token. The list of host names prevents DNS rebinding: a
page of another site, whose name was made to point here, cannot read the answers.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from oncehouse.errors import ConfigurationError

LEAST_TOKEN_CHARACTERS = 16
_OWN_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class HttpAuth:
    host: str
    port: int
    """0 takes a free one."""
    token: str | None
    names: frozenset[str]
    """Hosts that a request may name, in lower case and without a port."""

    def knows(self, host_header: str) -> bool:
        """Whether a request's `Host` names us."""
        return split_host(host_header) in self.names

    def authorizes(self, presented: str) -> bool:
        """Whether this is the token; every one where none is asked for."""
        return self.token is None or hmac.compare_digest(presented.encode(), self.token.encode())

    def authorizes_header(self, authorization: str) -> bool:
        """The same for a header `Authorization: Bearer …`."""
        return self.token is None or brings_token(authorization, self.token)


def brings_token(authorization: str, token: str) -> bool:
    """Whether a header `Authorization: Bearer …` brings this token."""
    scheme, _, presented = authorization.partition(" ")
    same = hmac.compare_digest(presented.strip().encode(), token.encode())
    return same and scheme.lower() == "bearer"


def make_http_auth(listen: str, *, token: str | None, names: Iterable[str] = ()) -> HttpAuth:
    """`listen` is HOST:PORT. Raises ConfigurationError for an address that would be open to other machines."""
    host, port = split_address(listen)
    own = is_loopback(host)
    if token is None and not own:
        raise ConfigurationError(
            f"{listen} can be reached from other machines, so a token is needed: put one into the "
            "environment as ONCEHOUSE_TOKEN or into a file that --token-file names, or listen on 127.0.0.1"
        )
    if token is not None and (len(token) < LEAST_TOKEN_CHARACTERS or not token.isprintable()):
        raise ConfigurationError(
            f"the token needs {LEAST_TOKEN_CHARACTERS} printable characters at least, such as those that "
            "`python -c 'import secrets; print(secrets.token_urlsafe())'` prints"
        )
    host_names = {name.lower().strip("[]") for name in names} | set(_OWN_NAMES) | {host.lower()}
    return HttpAuth(host=host, port=port, token=token, names=frozenset(host_names))


def split_address(listen: str) -> tuple[str, int]:
    """`127.0.0.1:8088`, `[::1]:8088` or `localhost:0`."""
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise ConfigurationError(
            f"{listen!a} is no address to listen on; write HOST:PORT, such as 127.0.0.1:8088"
        )
    return host, int(port)


def split_host(header: str) -> str:
    """The host of a `Host` header, without its port and in lower case."""
    name = header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0]


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
