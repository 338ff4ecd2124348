"""A throw-away authority, a serving certificate for loopback, and the key that signs service account tokens."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LIFETIME = timedelta(days=30)


@dataclass(frozen=True, kw_only=True)
class Certificates:
    """PEM files in one folder. `ca_pem` is the authority's certificate, for clients."""

    ca_pem: str
    ca: Path
    serving: Path
    serving_key: Path
    account_key: Path
    """Private key of service account tokens; Kubernetes reads the public half from the same file."""


def write(folder: Path) -> Certificates:
    """Make everything anew in `folder`, readable by its owner only."""
    ca_key, serving_key, account_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    ca = _certificate("poolshift sandbox", ca_key, None, ca_key)
    serving = _certificate("kube-apiserver", serving_key, ca, ca_key)
    made = Certificates(
        ca_pem=_pem(ca),
        ca=folder / "ca.crt",
        serving=folder / "apiserver.crt",
        serving_key=folder / "apiserver.key",
        account_key=folder / "service-accounts.key",
    )
    for path, text in (
        (made.ca, made.ca_pem),
        (made.serving, _pem(serving)),
        (made.serving_key, _key_pem(serving_key)),
        (made.account_key, _key_pem(account_key)),
    ):
        path.touch(mode=0o600)
        path.write_text(text)
    return made


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .add_extension(_usage(issuer is None), critical=True)
    )
    if issuer is not None:
        names: list[x509.GeneralName] = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,  # Kubernetes finds the public half in no other
        serialization.NoEncryption(),
    ).decode()
