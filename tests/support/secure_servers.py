"""TLS for the tests: a private authority and its certificates, a Kafka that asks for them, HTTPS before ClickHouse.

Certificates name the address 127.0.0.1 and no host, so that `localhost` is a name they do not vouch for.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import selectors
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from oncehouse.devstack.kafka import KafkaServer
from oncehouse.devstack.server_base import LOCALHOST, ServerPlace

USER = "alice"
PLAIN_PASSWORD = 'c4nary-plain-"\\quoted'
SCRAM_PASSWORD = "c4nary-scram-secret"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A certificate and its key, each in a file."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority that nobody trusts unless told to."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder / name
        self._folder.mkdir()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(self._name, self._key.public_key(), ca=True)
        self.file = self._folder / "ca.pem"
        self.file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        pair = Pair(certificate=self._folder / f"{name}.pem", key=self._folder / f"{name}.key")
        signed = self._sign(subject, key.public_key(), ca=False)
        pair.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, ca: bool) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if not ca:
            address = x509.IPAddress(ipaddress.ip_address(LOCALHOST))
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        return builder.sign(self._key, hashes.SHA256())


@dataclass(frozen=True, kw_only=True)
class SecureKafka(KafkaServer):
    """The dev stack's broker with two listeners more: TLS with client certificates, and SASL over TLS."""

    authority: Authority
    keys: Path
    """The broker's key and certificate in one file."""

    @property
    def tls_servers(self) -> str:
        return f"{LOCALHOST}:{self.place.ports['tls']}"

    @property
    def sasl_servers(self) -> str:
        return f"{LOCALHOST}:{self.place.ports['sasl']}"

    def _properties(self, data: Path) -> str:
        ports = self.place.ports
        secure = f"SSL://{LOCALHOST}:{ports['tls']},SASL_SSL://{LOCALHOST}:{ports['sasl']}"
        plain, quoted = super()._properties(data), PLAIN_PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
        for line in plain.splitlines():
            if line.startswith(("listeners=", "advertised.listeners=")):
                plain = plain.replace(line, f"{line},{secure}")
        jaas = (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'user_{USER}="{quoted}";'.replace("\\", "\\\\")
        )
        protocols = ("PLAINTEXT", "SSL", "SASL_SSL")
        more = {
            "listener.security.protocol.map": ",".join(
                ["CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in protocols)]
            ),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas,
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "listener.name.ssl.ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.keys),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.file),
            # What has no rules of its own is open to all, so that a test need only say what it forbids.
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:ANONYMOUS",
        }
        return plain + "".join(f"{name}={value}\n" for name, value in more.items())


@contextmanager
def run_secure_kafka(folder: Path, authority: Authority) -> Iterator[SecureKafka]:
    pair = authority.issue("broker")
    keys = folder / "broker-keys.pem"
    keys.write_bytes(pair.key.read_bytes() + pair.certificate.read_bytes())
    ports = dict(zip(("broker", "controller", "tls", "sasl"), free_ports(4), strict=True))
    kafka = SecureKafka(place=ServerPlace(folder=folder, ports=ports), authority=authority, keys=keys)
    kafka.prepare()
    launch = kafka.launch()
    for path, text in launch.files.items():
        path.write_text(text)
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(launch.command, cwd=folder, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 120
        while not kafka.is_ready():
            assert server.poll() is None, (folder / "server.log").read_text()[-2000:]
            assert time.monotonic() < end, "the secure broker does not come up"
            time.sleep(0.2)
        _add_scram_user(kafka)
        yield kafka
    finally:
        server.kill()
        server.wait()


def _add_scram_user(kafka: SecureKafka) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    wanted = UserScramCredentialUpsertion(USER, info, SCRAM_PASSWORD.encode())
    for future in admin.alter_user_scram_credentials([wanted]).values():
        future.result(timeout=30)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((LOCALHOST, 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


class TlsProxy:
    """TLS in front of a server of plain TCP, a thread a connection."""

    def __init__(self, pair: Pair, target_port: int) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pair.certificate, pair.key)
        self._target = target_port
        self._listener = socket.create_server((LOCALHOST, 0))
        self.port = self._listener.getsockname()[1]
        self.accepted = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        # Closing alone does not wake the thread that waits in accept.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(connection,), daemon=True).start()

    def _forward(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(10)
            with (
                self._context.wrap_socket(connection, server_side=True) as client,
                socket.create_connection((LOCALHOST, self._target)) as server,
            ):
                self.accepted += 1
                client.settimeout(None)
                _pump(client, server)


def _pump(client: ssl.SSLSocket, server: socket.socket) -> None:
    with selectors.DefaultSelector() as ready:
        ready.register(client, selectors.EVENT_READ, server)
        ready.register(server, selectors.EVENT_READ, client)
        while True:
            for key, _ in ready.select():
                data = key.fileobj.recv(1 << 16)
                # What TLS has decrypted already shows on no socket.
                while key.fileobj is client and client.pending():
                    data += client.recv(1 << 16)
                if not data:
                    return
                key.data.sendall(data)
