"""The registry's client: what it fetches, what it follows, and what it says when that fails."""

from __future__ import annotations

import datetime as dt
import io
import ipaddress
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import fastavro
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from oncehouse.config.formats import Avro
from oncehouse.config.formats import Registry as RegistrySection
from oncehouse.config.pipeline import Pipeline
from oncehouse.errors import ConfigurationError, PermanentError, TransientError
from oncehouse.pipeline.formats.avro.schema import parse_schema
from oncehouse.pipeline.formats.avro.schema_references import inline_references
from oncehouse.pipeline.formats.avro.schema_sources import fetch_from_registry
from oncehouse.pipeline.formats.schema_registry import RegistryClient
from oncehouse.pipeline.schema.discovery import check_schemas
from registry import Registry, running_registry

ADDRESS = {
    "type": "record",
    "name": "Address",
    "namespace": "places",
    "fields": [{"name": "city", "type": "string"}],
}
PERSON = {
    "type": "record",
    "name": "Person",
    "namespace": "people",
    "fields": [
        {"name": "home", "type": "places.Address"},
        {"name": "work", "type": ["null", "places.Address"]},
        {"name": "kind", "type": {"type": "array", "items": "Kind"}},
    ],
}
KIND = {"type": "enum", "name": "Kind", "namespace": "people", "symbols": ["a", "b"]}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as running:
        yield running


def client(registry: Registry, **more: object) -> RegistryClient:
    return RegistryClient(RegistrySection(url=registry.url, timeout=5, **more))


def test_a_schema_comes_with_all_that_it_refers_to(registry):
    registry.register("address", ADDRESS)
    registry.register("kind", KIND, references=[("places.Address", "address", 1)])
    number = registry.register(
        "person", PERSON, references=[("people.Kind", "kind", 1), ("places.Address", "address", 1)]
    )
    found = client(registry).fetch(number)
    assert found is not None
    assert found.kind == "AVRO"
    assert [name for name, _ in found.references] == ["places.Address", "people.Kind"]
    text = inline_references(found.text, found.references, where="person")
    value = {"home": {"city": "Rom"}, "work": None, "kind": ["b"]}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, json.loads(text), value)
    assert parse_schema(text, where="person").fields[0].name == "home"
    assert fastavro.schemaless_reader(io.BytesIO(out.getvalue()), json.loads(text), None) == value


def test_a_type_without_namespace_keeps_none_when_it_is_written_out():
    bare = {"type": "record", "name": "Bare", "fields": [{"name": "x", "type": "int"}]}
    outer = {"type": "record", "name": "people.Outer", "fields": [{"name": "b", "type": "Bare"}]}
    text = inline_references(json.dumps(outer), [("Bare", json.dumps(bare))], where="outer")
    assert parse_schema(text, where="outer").fields[0].node.name == "Bare"


def test_an_unknown_number_is_nothing(registry):
    assert client(registry).fetch(99) is None


def test_a_registry_that_is_busy_is_asked_again(registry):
    number = registry.register("address", ADDRESS)
    registry.answers = [(503, b""), (429, b"")]
    found = client(registry).fetch(number)
    assert found is not None
    assert registry.asked == [f"/schemas/ids/{number}"] * 3


def test_a_registry_that_stays_busy_or_is_away_may_answer_later(registry):
    registry.answers = [(500, b"")] * 10
    with pytest.raises(TransientError, match="500"):
        client(registry).fetch(1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        away = RegistrySection(url=f"http://127.0.0.1:{free.getsockname()[1]}", timeout=1)
    with pytest.raises(TransientError, match=r"does not answer \(.*refused\)\. Check that it runs") as caught:
        RegistryClient(away).fetch(1)
    assert "HTTPConnectionPool" not in str(caught.value)


def test_a_wrong_password_is_told_and_never_shown(registry):
    registry.credentials = "reader:right"
    number = registry.register("address", ADDRESS)
    assert client(registry, user="reader", password="right").fetch(number) is not None
    with pytest.raises(ConfigurationError, match="refuses the user") as refused:
        client(registry, user="reader", password="wrong-secret").fetch(number)
    assert "wrong-secret" not in str(refused.value)


def make_certificate(folder: Path) -> tuple[str, ssl.SSLContext]:
    """A certificate for 127.0.0.1 that signs itself, and a server's context with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "registry of the tests")])
    now = dt.datetime.now(dt.UTC)
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(host, critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "key.pem").write_bytes(secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return str(folder / "ca.pem"), context


def test_a_certificate_is_trusted_only_when_it_is_named_or_nobody_looks(tmp_path):
    ca_file, context = make_certificate(tmp_path)
    with running_registry(tls=context) as registry:
        number = registry.register("address", ADDRESS)
        assert client(registry, ca_file=ca_file).fetch(number) is not None
        assert client(registry, verify_tls=False).fetch(number) is not None
        with pytest.raises(ConfigurationError, match=r"registry\.ca_file"):
            client(registry).fetch(number)


def test_a_registry_that_hangs_is_away(registry):
    registry.delay_seconds = 0.5
    hurried = RegistryClient(RegistrySection(url=registry.url, timeout=0.05))
    with pytest.raises(TransientError, match="does not answer"):
        hurried.fetch(1)


@pytest.mark.parametrize("answer", [(200, b"<html>"), (200, b"[]"), (200, b"{}"), (302, b"")])
def test_what_is_no_registry_is_told(registry, answer):
    registry.answers = [answer]
    with pytest.raises(PermanentError, match="registry"):
        client(registry).fetch(1)


def test_a_registry_is_checked_before_it_is_needed(registry):
    source = {
        "kafka": {"bootstrap_servers": "localhost:9092", "topics": ["t"]},
        "format": "avro",
        "fields": {"a": "Int64"},
        "avro": {"registry": {"url": registry.url, "user": "reader", "password": "right"}},
    }
    pipeline = Pipeline(
        pipeline="p",
        source=source,
        identity={"fields": ["a"]},
        tables=[{"name": "t"}],
        clickhouse={"url": "http://localhost:8123"},
        ledger={"catalog": "sqlite:///none.db", "files": "none"},
    )
    check_schemas(pipeline)
    registry.credentials = "reader:other"
    with pytest.raises(ConfigurationError, match="refuses the user"):
        check_schemas(pipeline)


def test_references_that_lead_in_a_circle_end(registry):
    registry.register("a", ADDRESS, references=[("B", "b", 1)])
    registry.register("b", KIND, references=[("A", "a", 1)])
    with pytest.raises(PermanentError, match="circle"):
        client(registry).fetch(1)


def test_only_avro_records_are_taken_and_the_rest_waits(registry):
    good = registry.register("address", ADDRESS)
    registry.register("events", "syntax = 'proto3';", kind="PROTOBUF")
    registry.register("kind", KIND)
    registry.register("broken", "{")
    registry.register("hole", PERSON, references=[("places.Address", "nowhere", 1)])
    section = Avro(registry={"url": registry.url})
    names = {str(number) for number in range(1, 8)} | {"word", "99999999999", "²", "", "1" * 5000}
    assert [schema.schema for schema in fetch_from_registry(section, names)] == [str(good)]


def test_names_by_the_thousand_keep_nobody_busy_and_each_gets_its_turn(registry):
    registry.register("address", ADDRESS, number=9000)
    section = Avro(registry={"url": registry.url})
    names = {str(number) for number in range(8900, 9001)}
    found = False
    while not found:
        registry.asked.clear()
        found = bool(list(fetch_from_registry(section, names)))
        assert len(registry.asked) <= 100


def test_the_first_names_are_asked_for_however_many_follow(registry):
    registry.register("address", ADDRESS, number=9000)
    section = Avro(registry={"url": registry.url})
    names = ["9000", *(str(number) for number in range(10_000, 40_000))]
    assert [schema.schema for schema in fetch_from_registry(section, names)] == ["9000"]
    assert len(registry.asked) == 100


def test_a_registry_that_is_away_is_told_from_one_that_has_no_such_schema(registry):
    registry.register("address", ADDRESS)
    registry.answers = [(500, b"")] * 10
    section = Avro(registry={"url": registry.url})
    with pytest.raises(TransientError):
        list(fetch_from_registry(section, ["1"]))
    registry.answers = []
    assert list(fetch_from_registry(section, ["2"])) == []
