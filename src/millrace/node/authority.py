"""Certificates to begin with: an authority for clients and nodes' doors, another one for links between nodes.

There are two authorities, because whoever has a certificate of the cluster's authority is a node: a client
must not get one. Keys are elliptic (P-256), certificates say what they are for, and every file is readable by
its owner alone.

The package `cryptography` makes them. It is not needed to run a node, so it is an extra (decision 050).
"""

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.broker.meta.access import check_name
from millrace.errors import ConfigError, LocalError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

NO_CRYPTOGRAPHY = "this needs the package cryptography: pip install 'millrace[crypto]'"
_AUTHORITY_DAYS = 3_650
_CERTIFICATE_DAYS = 825
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*")
_OWN = ("ca", "node", "cluster-ca", "cluster")


def check(names: Sequence[str], clients: Sequence[str]) -> None:
    """ConfigError for names of hosts or clients that no certificate of ours can have."""
    for name in names:
        if not _is_address(name) and not _HOST.fullmatch(name):
            raise ConfigError(f"{name!r} is neither the name of a host nor an address")
    for client in clients:
        try:
            check_name(client)
        except LocalError as error:
            raise ConfigError(str(error)) from None
        if client in _OWN or set(client) <= {"."}:
            raise ConfigError(f"a client named {client!r} would have the files of another certificate")


def files_of(directory: Path, clients: Sequence[str]) -> list[Path]:
    """All files that `make` writes."""
    return [directory / f"{name}.{kind}" for name in (*_OWN, *clients) for kind in ("pem", "key")]


def make(directory: Path, names: Sequence[str], clients: Sequence[str]) -> None:
    """Write both authorities, the certificate of a node at these names, the one that it shows to other nodes,
    and one for each client. What was there is replaced."""
    try:
        from cryptography.x509.oid import ExtendedKeyUsageOID as Usage
    except ImportError:
        raise LocalError(NO_CRYPTOGRAPHY) from None
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    doors = _Authority(directory, "ca", "Millrace development authority")
    doors.issue("node", names[0], [Usage.SERVER_AUTH], names)
    for client in clients:
        doors.issue(client, client, [Usage.CLIENT_AUTH])
    links = _Authority(directory, "cluster-ca", "Millrace development authority of nodes")
    links.issue("cluster", "node", [Usage.SERVER_AUTH, Usage.CLIENT_AUTH], names)


class _Authority:
    def __init__(self, directory: Path, file: str, name: str) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        builder = (
            self._builder(self._name, self._key.public_key(), _AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs=True), critical=True)
            .add_extension(self._identifier, critical=False)
        )
        self._write(file, builder, self._key)

    def issue(self, file: str, name: str, usages: Sequence[Any], hosts: Sequence[str] = ()) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier)
        builder = (
            self._builder(_named(name), key.public_key(), _CERTIFICATE_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(issuer, critical=False)
        )
        if hosts:
            others = [
                x509.IPAddress(ipaddress.ip_address(host)) if _is_address(host) else x509.DNSName(host)
                for host in hosts
            ]
            builder = builder.add_extension(x509.SubjectAlternativeName(others), critical=False)
        self._write(file, builder, key)

    def _builder(
        self, subject: "x509.Name", key: "ec.EllipticCurvePublicKey", days: int
    ) -> "x509.CertificateBuilder":
        from cryptography import x509

        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            # Clocks of other machines may be behind.
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=days))
        )

    def _write(
        self, file: str, builder: "x509.CertificateBuilder", key: "ec.EllipticCurvePrivateKey"
    ) -> None:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        certificate = builder.sign(self._key, hashes.SHA256())
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        _write_private(self._directory / f"{file}.key", secret)
        _write_private(self._directory / f"{file}.pem", certificate.public_bytes(Encoding.PEM))


def _write_private(path: Path, content: bytes) -> None:
    """Whole, or not at all; never readable by others, not even for a moment."""
    aside = path.with_name(f"{path.name}.new")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    aside.replace(path)


def _named(name: str) -> "x509.Name":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _key_usage(*, signs: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
