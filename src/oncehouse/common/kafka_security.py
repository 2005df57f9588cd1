"""TLS and SASL of Kafka's clients: what is refused before anything connects, and librdkafka's words in Java's.

The driver reads with librdkafka, Spark with Kafka's Java client; a pipeline file says it once, in librdkafka's words.
Nothing is ever less secure on one side than on the other: a setting that only one of them has is refused. Private
keys are read here, on the driver, and travel as secret options.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import SecretStr

from oncehouse.errors import ConfigurationError

_PLAIN_TEXT = {"PLAINTEXT", "SASL_PLAINTEXT"}
_PROTOCOLS = {*_PLAIN_TEXT, "SSL", "SASL_SSL"}
_PKCS8 = "-----BEGIN PRIVATE KEY-----"


def refuse_unused_security(options: Mapping[str, str | SecretStr]) -> None:
    """A certificate or a password in the file asks for a secure connection; Kafka's default is a plain one."""
    protocol_option = options.get("security.protocol", "PLAINTEXT")
    protocol = str(
        protocol_option.get_secret_value() if isinstance(protocol_option, SecretStr) else protocol_option
    ).upper()
    if protocol not in _PROTOCOLS:
        raise ValueError(f"security.protocol must be one of {', '.join(sorted(_PROTOCOLS))}")
    for name in options:
        if name.startswith("ssl.") and protocol in _PLAIN_TEXT:
            raise ValueError(
                f"{name!r} has no effect with security.protocol {protocol}, which is never encrypted; write SSL or "
                "SASL_SSL"
            )
        if name.startswith("sasl.") and "SASL" not in protocol:
            raise ValueError(
                f"{name!r} has no effect with security.protocol {protocol}, which asks for no user; write SASL_SSL"
            )
    _require_verification(options)


def _require_verification(options: Mapping[str, str | SecretStr]) -> None:
    if str(options.get("enable.ssl.certificate.verification", "true")).lower() != "true":
        raise ValueError(
            "'enable.ssl.certificate.verification' cannot be switched off: Spark's client would check all the same. "
            "Name the broker's certificate authority in 'ssl.ca.location'"
        )


def convert_for_java(options: Mapping[str, str]) -> dict[str, str]:
    """The options of librdkafka as Kafka's Java client spells them; others are passed on as they are."""
    converted = dict(options)
    _convert_user(converted)
    _convert_certificates(converted)
    converted.pop("enable.ssl.certificate.verification", None)
    if "fetch.wait.max.ms" in converted:
        converted["fetch.max.wait.ms"] = converted.pop("fetch.wait.max.ms")
    if converted.get("ssl.endpoint.identification.algorithm") == "none":
        converted["ssl.endpoint.identification.algorithm"] = ""
    if "security.protocol" in converted:
        converted["security.protocol"] = converted["security.protocol"].upper()
    return converted


def _convert_user(options: dict[str, str]) -> None:
    user, password = options.pop("sasl.username", None), options.pop("sasl.password", None)
    mechanism = options.pop("sasl.mechanisms", None) or options.get("sasl.mechanism")
    if mechanism is not None:
        options["sasl.mechanism"] = mechanism
    if user is not None:
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        options["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required "
            f"username={_jaas(user)} password={_jaas(password or '')};"
        )


def _convert_certificates(options: dict[str, str]) -> None:
    if "ssl.ca.location" in options:
        options["ssl.truststore.location"] = options.pop("ssl.ca.location")
        options["ssl.truststore.type"] = "PEM"
    certificate, key = options.pop("ssl.certificate.location", None), options.pop("ssl.key.location", None)
    if certificate is None or key is None:
        return
    options["ssl.keystore.type"] = "PEM"
    options["ssl.keystore.certificate.chain"] = read_pem(certificate, "ssl.certificate.location")
    options["ssl.keystore.key"] = _require_pkcs8(read_pem(key, "ssl.key.location"), key)


def read_pem(path: str, option: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not PEM text"
        raise ConfigurationError(f"source.kafka.options: {option} {path!r} cannot be read: {why}") from None


def _require_pkcs8(key: str, path: str) -> str:
    # Java 17 lacks the algorithm by which today's tools encrypt keys, so that an encrypted one is no use either.
    if _PKCS8 not in key:
        raise ConfigurationError(
            f"source.kafka.options: ssl.key.location {path!r} is no plain key in PKCS #8, and Kafka's Java client "
            "reads no other. Convert it into a file for its owner alone: "
            f"openssl pkcs8 -topk8 -nocrypt -in {path} -out KEY.pem"
        )
    return key


def _jaas(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
