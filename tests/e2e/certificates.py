"""Certificates for tests: an authority and what it signs, as PEM files; elliptic curves are quick."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as the paths of their files."""

    certificate: str
    key: str


class Authority:
    """Signs certificates; `file` is what others trust."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        builder = builder.add_extension(self._identifier, critical=False)
        self.file = str(_write(directory / f"{name}.pem", builder.sign(self._key, hashes.SHA256())))

    def issue(
        self,
        common_name: str,
        *,
        server: bool = False,
        node: bool = False,
        dns: str = "",
        email: str = "",
        uri: str = "",
    ) -> Pair:
        """A certificate for 127.0.0.1, or for a client of this name; a node's is for both sides of a link."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        usages = [ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH]
        if node:
            usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = _builder(subject, self._name, key.public_key())
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier)
        builder = builder.add_extension(issuer, critical=False)
        others: list[x509.GeneralName] = []
        if server:
            others.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        others += [x509.DNSName(dns)] if dns else []
        others += [x509.RFC822Name(email)] if email else []
        others += [x509.UniformResourceIdentifier(uri)] if uri else []
        if others:
            builder = builder.add_extension(x509.SubjectAlternativeName(others), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        key_path = self._directory / f"{common_name}.key"
        key_path.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        )
        return Pair(str(_write(self._directory / f"{common_name}.pem", certificate)), str(key_path))


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )


def _write(path: Path, certificate: x509.Certificate) -> Path:
    path.write_bytes(certificate.public_bytes(Encoding.PEM))
    return path
