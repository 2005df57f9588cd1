"""The settings that all our Kafka clients share, and the texts of Kafka's errors.

Options come in Kafka's own spelling as librdkafka reads it. Secrets are revealed here and nowhere earlier.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from oncehouse.common.redaction import is_secret_setting, remember

TIMEOUT_SECONDS = 15.0


def client_settings(bootstrap_servers: str, options: Mapping[str, str | SecretStr]) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap_servers,
        "socket.timeout.ms": int(TIMEOUT_SECONDS * 1000),
        "logger": _silent(),
        **plain_options(options),
    }


def plain_options(options: Mapping[str, str | SecretStr]) -> dict[str, str]:
    for name, value in options.items():
        if isinstance(value, SecretStr):
            remember(value.get_secret_value())
        elif is_secret_setting(name):
            remember(value)
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in options.items()
    }


def describe_error(error: Exception) -> str:
    """The words of a KafkaException, which wraps the client's own error object."""
    return str(error.args[0].str()) if error.args and hasattr(error.args[0], "str") else str(error)


def _silent() -> logging.Logger:
    # librdkafka writes to stderr by itself; what matters reaches the caller as an exception.
    logger = logging.getLogger("oncehouse.kafka")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
