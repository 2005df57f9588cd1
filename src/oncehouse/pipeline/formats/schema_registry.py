"""A schema registry with Confluent's interface, asked by the driver alone.

Numbers that stand in a record's wire prefix are looked up once; the ledger keeps what was found. A registry
that is away is a TransientError, a refused user a ConfigurationError, an unknown number is None. What a schema
says is the format's own business; here it is text, with the texts that it refers to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import SystemRandom
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import urllib3

from oncehouse.common.redaction import reveal
from oncehouse.errors import ConfigurationError, PermanentError, TransientError

if TYPE_CHECKING:
    from oncehouse.config.formats import Registry

_LARGEST_ANSWER_BYTES = 16 << 20
_MOST_REFERENCES = 1000
_GREATEST_NUMBER = (1 << 32) - 1
# Records can name any number of schemas that do not exist; the driver does not ask for more than this at a time.
MOST_REQUESTED = 100
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


def _describe(error: Exception) -> str:
    """What the last try met, without the driver's wrapping."""
    reason = getattr(error, "reason", None) or error
    return str(reason).rpartition("): ")[2] or type(reason).__name__


@dataclass(frozen=True, kw_only=True)
class RegisteredSchema:
    kind: str
    """AVRO, PROTOBUF or JSON."""
    text: str
    references: tuple[tuple[str, str], ...] = ()
    """Name and text of what it refers to, each after what it needs itself."""


def read_number(text: str) -> int | None:
    """The number by which a registry knows a schema; None for any other text, of which records are full."""
    number = int(text) if re.fullmatch("[0-9]{1,10}", text) else None
    return number if number is not None and number <= _GREATEST_NUMBER else None


def fetch_some(
    config: Registry | None, numbers: Mapping[str, int | None]
) -> Iterator[tuple[str, RegisteredSchema]]:
    """By name: what can be had now of so many as may be asked for at once. Raises TransientError when it is away.

    Half of them are the first that are given, the others are chosen again each time.
    """
    wanted = {name: number for name, number in numbers.items() if number is not None}
    if config is None or not wanted:
        return
    client = RegistryClient(config)
    names = list(wanted)
    first, rest = names[: MOST_REQUESTED // 2], names[MOST_REQUESTED // 2 :]
    for name in (*first, *SystemRandom().sample(rest, min(len(rest), MOST_REQUESTED - len(first)))):
        try:
            found = client.fetch(wanted[name])
        except PermanentError:
            continue  # one schema that cannot be had must not stop the others
        if found is not None:
            yield name, found


class RegistryClient:
    def __init__(self, config: Registry) -> None:
        self._config = config
        self._address = config.url.rstrip("/")
        retry = urllib3.Retry(
            total=3, backoff_factor=0.2, status_forcelist=(429, 500, 502, 503, 504), raise_on_status=False
        )
        if not config.verify_tls:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # it was asked for
        trust: dict[str, Any] = {"ca_certs": config.ca_file} if config.ca_file else {}
        self._pool = urllib3.PoolManager(
            retries=retry,
            timeout=urllib3.Timeout(total=config.timeout),
            cert_reqs="CERT_REQUIRED" if config.verify_tls else "CERT_NONE",
            headers=self._headers(),
            **trust,
        )

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": _ACCEPT}
        if self._config.user is not None:
            headers |= urllib3.make_headers(basic_auth=f"{self._config.user}:{reveal(self._config.password)}")
        return headers

    def check(self) -> None:
        """Raise what asking for a schema would raise; whether there is any does not matter."""
        self._get("/schemas/ids/1")

    def fetch(self, number: int) -> RegisteredSchema | None:
        """The schema of this number with all that it refers to, or None when the registry has none."""
        found = self._get(f"/schemas/ids/{number}")
        if found is None:
            return None
        references: dict[str, str] = {}
        self._follow(found, references, [])
        return RegisteredSchema(
            kind=str(found.get("schemaType") or "AVRO"),
            text=self._text(found, f"schema {number}"),
            references=tuple(references.items()),
        )

    def _follow(self, found: dict[str, Any], references: dict[str, str], above: list[str]) -> None:
        for reference in found.get("references") or ():
            name, subject, version = (str(reference.get(key)) for key in ("name", "subject", "version"))
            if name in references:
                continue
            if name in above or len(references) >= _MOST_REFERENCES:
                raise PermanentError(f"The registry {self._address}: references of {name!r} lead in a circle")
            named = self._get(f"/subjects/{quote(subject, safe='')}/versions/{quote(version, safe='')}")
            if named is None:
                raise PermanentError(
                    f"The registry {self._address} has no version {version} of {subject!r}, to which a schema "
                    "refers. Register it there."
                )
            self._follow(named, references, [*above, name])
            references[name] = self._text(named, f"{subject} {version}")

    def _text(self, found: dict[str, Any], what: str) -> str:
        text = found.get("schema")
        if not isinstance(text, str):
            raise PermanentError(f"The registry {self._address} answered for {what} without a schema.")
        return text

    def _get(self, path: str) -> dict[str, Any] | None:
        try:
            # A redirect could carry the password to another host.
            answer = self._pool.request("GET", self._address + path, redirect=False, preload_content=False)
            try:
                body = answer.read(_LARGEST_ANSWER_BYTES + 1)
            finally:
                answer.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if isinstance(getattr(error, "reason", error), urllib3.exceptions.SSLError):
                raise ConfigurationError(
                    f"The schema registry {self._address} cannot be trusted: {error}. Name its certificates in "
                    "registry.ca_file."
                ) from error
            raise TransientError(
                f"The schema registry {self._address} does not answer ({_describe(error)}). Check that it runs and "
                "that registry.url is right. Records of schemas that are not known wait until it does."
            ) from error
        return self._check_status(answer.status, body, path)

    def _check_status(self, status: int, body: bytes, path: str) -> dict[str, Any] | None:
        if status == 404:
            return None
        if status in {401, 403}:
            raise ConfigurationError(
                f"The schema registry {self._address} refuses the user ({status}). Correct registry.user and "
                "registry.password."
            )
        if status == 429 or status >= 500:
            raise TransientError(f"The schema registry {self._address} answered {status} for {path}.")
        try:
            found = json.loads(body) if status == 200 and len(body) <= _LARGEST_ANSWER_BYTES else None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise PermanentError(
                f"The schema registry {self._address} answered {status} for {path} with no JSON object. Check "
                "registry.url."
            )
        return found
