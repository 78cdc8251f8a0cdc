"""A serving certificate with an authority of its own, made at each start: nothing to keep, to mount or to renew."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = timedelta(days=3650)
_SKEW = timedelta(hours=1)
"""Clocks of other machines may be so far behind."""


class Serving(NamedTuple):
    """Everything as PEM."""

    authority: bytes
    chain: bytes
    key: bytes


def make(host: str, aliases: tuple[str, ...] = ()) -> Serving:
    """A certificate for `host` and its aliases, signed by an authority whose key is thrown away."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pagefleet custom metrics")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    names = x509.SubjectAlternativeName([x509.DNSName(name) for name in (host, *aliases)])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    authority = _signed(
        _begun(issuer, issuer, authority_key).add_extension(x509.BasicConstraints(ca=True, path_length=0), True),
        authority_key,
    )
    leaf = _begun(subject, issuer, key).add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    chain = _signed(leaf.add_extension(names, False).add_extension(usage, False), authority_key)
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return Serving(authority, chain, private)


def _begun(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _VALID)
    )


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
