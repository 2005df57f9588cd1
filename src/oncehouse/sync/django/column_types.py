"""Which ClickHouse type holds a field of a Django model. No value is rounded or cut."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from oncehouse.errors import ConfigurationError

_TYPES = {
    "SmallAutoField": "Int16",
    "AutoField": "Int32",
    "BigAutoField": "Int64",
    "SmallIntegerField": "Int16",
    "IntegerField": "Int32",
    "BigIntegerField": "Int64",
    "PositiveSmallIntegerField": "UInt16",
    "PositiveIntegerField": "UInt32",
    "PositiveBigIntegerField": "UInt64",
    "BooleanField": "Bool",
    "FloatField": "Float64",
    "UUIDField": "UUID",
    "DateField": "Date32",
    # Microseconds.
    "DurationField": "Int64",
    **dict.fromkeys(
        (
            *(
                "CharField",
                "TextField",
                "SlugField",
                "FileField",
                "FilePathField",
                "BinaryField",
                "JSONField",
            ),
            *("TimeField", "GenericIPAddressField", "IPAddressField", "HStoreField"),
        ),
        "String",
    ),
}


def choose_type(field: Any) -> str:
    """Raises ConfigurationError where the user has to say it."""
    inner = _choose_inner(field)
    if field.null and not inner.startswith("Array("):
        return f"Nullable({inner})"
    return inner


def _choose_inner(field: Any) -> str:
    if field.is_relation and field.remote_field is not None:
        return _choose_inner(field.target_field)
    kind = field.get_internal_type()
    match kind:
        case "DecimalField":
            return f"Decimal({field.max_digits}, {field.decimal_places})"
        case "DateTimeField":
            zone = "UTC" if settings.USE_TZ else settings.TIME_ZONE
            return f"DateTime64(6, '{zone}')"
        case "ArrayField":
            return f"Array({choose_type(field.base_field)})"
        case "GeneratedField":
            return _choose_inner(field.output_field)
    if kind not in _TYPES:
        raise ConfigurationError(
            f"{field.model.__name__}.{field.name} is a {kind}, for which no ClickHouse type is known. Name one in "
            f"`columns`, such as columns = {{{field.name!r}: 'String'}}, or leave it out: {{{field.name!r}: None}}."
        )
    return _TYPES[kind]
