"""The small values that a pipeline file is made of: durations, sizes, counts, names and what may be shown.

Pure functions from text to value; each ValueError is a whole piece of advice, because users read it as it
is. Names of topics, tables, columns and fields are hostile input: what passes here may be quoted, printed
and written to a file name, and nothing more is promised about it.
"""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, WithJsonSchema

from oncehouse.common.redaction import is_secret_setting

MAX_NAME_LENGTH = 200

DURATION_PATTERN = r"^\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d|w)\s*$"
SIZE_PATTERN = r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([KkMmGgTt]?[Bb])\s*$"
_DURATION_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SIZE_BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SERVER = re.compile(r"(?:[A-Za-z_]+://)?(?:[^\s,:/@\[\]]+|\[[0-9a-fA-F:.]+\]):(\d{1,5})")
_MASTER_ADDRESS = r"(?:[^\s,:/@\[\]]+|\[[0-9a-fA-F:.]+\])"
_MASTER = re.compile(
    r"local(\[(\*|[1-9]\d*)(, *\d+)?\])?|yarn"
    rf"|spark://{_MASTER_ADDRESS}:\d{{1,5}}(,{_MASTER_ADDRESS}:\d{{1,5}})*"
    rf"|k8s://(https?://)?{_MASTER_ADDRESS}(:\d{{1,5}})?(/\S*)?"
)
# C0, DEL, C1, line and paragraph separators, direction overrides, the byte order mark, lone surrogates.
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def parse_duration(value: object) -> object:
    """Seconds from "500ms", "5s", "10m", "2h", "60d" or a plain number of seconds."""
    if isinstance(value, bool) or value is None:
        raise ValueError('must be a duration, such as "500ms", "5s", "10m", "2h" or "60d"')
    if not isinstance(value, str):
        return value
    match = re.match(DURATION_PATTERN, value)
    if match is None:
        raise ValueError(f'{value!r} is not a duration; write it like "500ms", "5s", "10m", "2h" or "60d"')
    return float(match[1]) * _DURATION_SECONDS[match[2]]


def format_duration(seconds: float) -> str:
    """The shortest spelling that `parse_duration` reads back as the same number of seconds."""
    for unit in ("d", "h", "m", "s"):
        count = seconds / _DURATION_SECONDS[unit]
        if count == int(count) and (count or unit == "s"):
            return f"{int(count)}{unit}"
    return f"{seconds * 1000:g}ms" if seconds < 1 else f"{seconds:g}s"


def parse_size(value: object) -> object:
    """Bytes from "64KB", "16MB", "2GB" or a plain number of bytes."""
    if isinstance(value, bool) or value is None:
        raise ValueError('must be a size, such as "64KB", "16MB" or "2GB"')
    if not isinstance(value, str):
        return value
    match = re.match(SIZE_PATTERN, value)
    if match is None:
        raise ValueError(f'{value!r} is not a size; write it like "64KB", "16MB" or "2GB"')
    return int(float(match[1]) * _SIZE_BYTES[match[2].upper()])


def format_size(count: int) -> str:
    """The shortest spelling that `parse_size` reads back as the same number of bytes."""
    for unit in ("TB", "GB", "MB", "KB"):
        if count and count % _SIZE_BYTES[unit] == 0:
            return f"{count // _SIZE_BYTES[unit]}{unit}"
    return f"{count}B"


def _refuse_switch(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a whole number, not true or false")  # noqa: TRY004
    return value


def read_number_path(value: object) -> object:
    """One number as a path of one step."""
    return (value,) if isinstance(value, int) and not isinstance(value, bool) else value


def _refuse_structure(value: object) -> object:
    if not isinstance(value, str | int):
        raise ValueError("must be text, a whole number, true or false")  # noqa: TRY004
    return value


def _read_schema_name(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def check_name(value: str) -> str:
    """A name of a field or column: anything that a person can see and a terminal cannot be hurt by."""
    if not value or value != value.strip():
        raise ValueError("a name must not be empty, nor begin or end with a space")
    if len(value) > MAX_NAME_LENGTH:
        raise ValueError(f"a name may have at most {MAX_NAME_LENGTH} characters; this one has {len(value)}")
    if holds_control(value):
        raise ValueError(f"the name {value!a} holds an invisible or control character; remove it")
    return value


def holds_control(text: str) -> bool:
    """Whether a text could end a line, turn its direction or speak to a terminal."""
    return _CONTROL.search(text) is not None


def check_table_name(value: str) -> str:
    parts = value.split(".")
    if len(parts) > 2:
        raise ValueError(f"{value!a} has more than one dot; write `table` or `database.table`")
    for part in parts:
        check_name(part)
    return value


def check_topic(value: str) -> str:
    if not _TOPIC.fullmatch(value) or value in {".", ".."}:
        raise ValueError(
            f"{value[:300]!a} is not a topic name; Kafka allows letters, digits, '.', '_', '-', at most 249"
        )
    return value


def check_servers(value: str) -> str:
    for server in value.split(","):
        match = _SERVER.fullmatch(server.strip())
        if match is None or not 0 < int(match[1]) < 65536:
            raise ValueError(
                f"{server.strip()!a} is not a server; write `host:port`, several with commas between"
            )
    return value


def check_master(value: str) -> str:
    if not _MASTER.fullmatch(value):
        raise ValueError(
            f"{value[:300]!a} is no master of Spark; write local[*], local[2], spark://host:7077, yarn or "
            "k8s://https://host:6443"
        )
    return value


def check_http_url(value: str) -> str:
    advice = "write it like http://localhost:8123 or https://host:8443/database"
    parts = _split_address(value, advice, section="clickhouse")
    database = unquote(parts.path.strip("/"))
    if database.count("/"):
        raise ValueError(f"the URL may hold a host, a port and a database only; {advice}")
    if database:
        check_name(database)
    return value


def check_registry_url(value: str) -> str:
    """Some registries have their interface under a path of their own."""
    advice = "write it like https://registry:8081 or https://registry/apis/ccompat/v7"
    _split_address(value, advice, section="registry")
    return value


def check_connect_url(value: str) -> str:
    _split_address(value, "write it like http://localhost:8083", section="cdc")
    return value


def _split_address(value: str, advice: str, *, section: str) -> SplitResult:
    if _CONTROL.search(value) or " " in value:
        raise ValueError(f"the URL holds a space or control character; {advice}")
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise ValueError(f"the URL cannot be read; {advice}") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            f"a URL is printed in messages; move the credentials to {section}.user and {section}.password"
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        raise ValueError(f"{value!a} is not an HTTP address; {advice}")
    if parts.query or parts.fragment:
        raise ValueError(f"the URL may not hold a query or fragment; {advice}")
    return parts


def refuse_needless_ca(url: str, ca_file: str | None) -> None:
    """Named certificates are meant to be checked, which an address without TLS would never do."""
    if ca_file is not None and not url.startswith("https://"):
        raise ValueError("`ca_file` has no meaning with http://, where nothing is checked; write https://")


def check_mark(text: str) -> str:
    if len(text) != 1 or not text.isascii() or text in "\r\n\0":
        raise ValueError(f"must be one ASCII character and no line end, such as ',' or '\\t'; not {text!r}")
    return text


def check_pattern(text: str) -> str:
    """A regular expression of RE2 with named groups, which takes linear time whatever the text is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    advice = "write a regular expression of RE2 with named groups (?P<name>…), and (?:…) for other groups"
    try:
        found = pc.extract_regex(pa.array([], pa.string()), text)
    except pa.ArrowException as error:
        raise ValueError(f"{error}; {advice}") from None
    if not found.type.num_fields:
        raise ValueError(f"names no group; {advice}")
    return text


def check_column_type(value: str) -> str:
    from oncehouse.column_types.parser import parse_type
    from oncehouse.errors import ConfigurationError

    try:
        parse_type(value)
    except ConfigurationError as error:
        # pydantic collects ValueErrors; any other error would hide the rest of the file's problems.
        raise ValueError(str(error)) from None
    return value


def refuse_repeats(values: tuple[str, ...]) -> tuple[str, ...]:
    repeated = next((value for at, value in enumerate(values) if value in values[:at]), None)
    if repeated is not None:
        raise ValueError(f"{repeated!r} stands here more than once")
    return values


def refuse_crossed(least: tuple[str, float], most: tuple[str, float]) -> None:
    if least[1] > most[1]:
        raise ValueError(f"{least[0]} ({least[1]:g}) must not be greater than {most[0]} ({most[1]:g})")


def setting_text(value: object) -> object:
    """Settings of other programs are text; YAML reads `true` and `5` as more than that."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return value


def read_settings(value: object) -> object:
    return {k: setting_text(v) for k, v in value.items()} if isinstance(value, dict) else value


def read_secret_settings(value: object) -> object:
    """As `read_settings`, with what looks like a secret wrapped so that it is never printed."""
    settings = read_settings(value)
    if not isinstance(settings, dict):
        return settings
    return {
        k: SecretStr(v) if isinstance(k, str) and isinstance(v, str) and is_secret_setting(k) else v
        for k, v in settings.items()
    }


_DURATION_SCHEMA = {
    "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": DURATION_PATTERN}]
}
_SIZE_SCHEMA = {
    "anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "string", "pattern": SIZE_PATTERN}]
}
_SETTINGS_SCHEMA = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}

Seconds = Annotated[
    float, BeforeValidator(parse_duration), Field(ge=0, allow_inf_nan=False), WithJsonSchema(_DURATION_SCHEMA)
]
Bytes = Annotated[int, BeforeValidator(parse_size), Field(gt=0), WithJsonSchema(_SIZE_SCHEMA)]
Count = Annotated[int, BeforeValidator(_refuse_switch)]
Name = Annotated[
    str, AfterValidator(check_name), Field(json_schema_extra={"minLength": 1, "maxLength": MAX_NAME_LENGTH})
]
TableName = Annotated[str, AfterValidator(check_table_name)]
Topic = Annotated[
    str, AfterValidator(check_topic), Field(json_schema_extra={"pattern": r"^[a-zA-Z0-9._-]{1,249}$"})
]
Servers = Annotated[str, AfterValidator(check_servers)]
SparkMaster = Annotated[str, AfterValidator(check_master)]
HttpUrl = Annotated[str, AfterValidator(check_http_url), Field(json_schema_extra={"pattern": "^https?://"})]
RegistryUrl = Annotated[
    str, AfterValidator(check_registry_url), Field(json_schema_extra={"pattern": "^https?://"})
]
ConnectUrl = Annotated[
    str, AfterValidator(check_connect_url), Field(json_schema_extra={"pattern": "^https?://"})
]
ColumnTypeText = Annotated[str, AfterValidator(check_column_type)]
FromSchema = Annotated[
    bool | Name,
    BeforeValidator(_read_schema_name),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "integer"}, {"type": "string"}]}),
]
FieldNumber = Annotated[int, BeforeValidator(_refuse_switch), Field(ge=1, le=(1 << 29) - 1)]
FieldNumbers = Annotated[
    tuple[FieldNumber, ...],
    BeforeValidator(read_number_path),
    Field(min_length=1),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "array", "items": {"type": "integer"}}]}
    ),
]
RouteValue = Annotated[str | int | bool, BeforeValidator(_refuse_structure)]
Settings = Annotated[dict[str, str], BeforeValidator(read_settings), WithJsonSchema(_SETTINGS_SCHEMA)]
SecretSettings = Annotated[
    dict[str, str | SecretStr], BeforeValidator(read_secret_settings), WithJsonSchema(_SETTINGS_SCHEMA)
]
