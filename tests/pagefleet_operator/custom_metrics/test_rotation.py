"""The aggregator's authority is another one from some moment on: who counts as the aggregator follows."""

import asyncio
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pagefleet_operator.apiserver import cluster as api
from pagefleet_operator.apiserver.cache import WatchCache
from pagefleet_operator.custom_metrics import serving, wire
from pagefleet_operator.kinds import CONFIG_MAP, Kind
from pagefleet_operator.settings import Address, Settings
from tests.ports import free_port

DISCOVERY = f"/apis/{wire.GROUP_VERSION}"
USER = {"X-Remote-User": "jane"}
PEM = serialization.Encoding.PEM


class Aggregator:
    """A client certificate, and the authority that signed it."""

    def __init__(self, folder: Path) -> None:
        key, authority_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        self.authority = _certificate("front proxy", authority_key, authority_key).public_bytes(PEM).decode()
        leaf = _certificate("front-proxy-client", key, authority_key)
        self.path = folder / f"{leaf.serial_number}.pem"
        private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        self.path.write_bytes(leaf.public_bytes(PEM) + private)

    async def asks(self, port: int) -> int | None:
        """The status of an answer; None where the connection is refused."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(self.path)
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"https://127.0.0.1:{port}{DISCOVERY}", ssl=context, headers=USER) as answer,
            ):
                return answer.status
        except aiohttp.ClientError:
            return None

    async def gets(self, port: int, status: int) -> bool:
        """Whether it gets this answer sooner or later."""
        for _ in range(500):
            if await self.asks(port) == status:
                return True
            await asyncio.sleep(0.01)
        return False


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, authority_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    issuer, subject = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in ("front proxy", name))
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=key is authority_key, path_length=None), True)
        .sign(authority_key, hashes.SHA256())
    )


class Server:
    """What the API server says of its aggregator."""

    def __init__(self, authority: str) -> None:
        self.authority = authority

    async def read(self, kind: Kind, namespace: str | None, name: str) -> dict[str, Any]:
        if kind != CONFIG_MAP:
            return {"spec": {"service": {"namespace": "n", "name": "x-api"}}}
        words = {
            "requestheader-allowed-names": '["front-proxy-client"]',
            "requestheader-username-headers": '["X-Remote-User"]',
        }
        return {"data": {**words, "requestheader-client-ca-file": self.authority}}

    async def trust(self, live: object, bundle: str) -> None: ...

    async def allows(self, review: object) -> bool:
        return True


async def test_a_new_authority_of_the_aggregator_takes_the_place_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_LOOK_S", 0.02)
    monkeypatch.setattr(serving, "_FIRST_LOOK_S", 0.02)
    old, new = Aggregator(tmp_path), Aggregator(tmp_path)
    server, port = Server(old.authority), free_port()
    sources = serving.Sources(cast(api.Cluster, server), WatchCache(), cast(Any, SimpleNamespace()), lambda: True)
    settings = Settings(lease_namespace="n", lease_name="x")
    metrics = serving.CustomMetrics(settings, Address("127.0.0.1", port), sources)
    running = asyncio.create_task(metrics.run())
    try:
        assert await old.gets(port, 200)
        assert await new.asks(port) is None
        for none in ("no certificate at all", "kein Zertifikat für irgendwen"):
            server.authority = none
            assert await _becomes(lambda: "cannot be read" in (metrics.refusal or ""))
            assert await old.asks(port) == 200, "what is no authority takes no other one's place"
        server.authority = new.authority
        assert await new.gets(port, 200)
        assert await old.asks(port) is None
        assert await _becomes(lambda: metrics.refusal is None)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _becomes(true: Callable[[], bool]) -> bool:
    for _ in range(500):
        if true():
            return True
        await asyncio.sleep(0.01)
    return False
