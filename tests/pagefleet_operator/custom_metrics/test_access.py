"""Who is believed to ask, what is asked about them, and the certificate that they see."""

import contextlib
import json
import ssl
from typing import Any

import pytest
from multidict import CIMultiDict

from pagefleet_api.custom_metrics import CustomMetric
from pagefleet_operator.custom_metrics import access, certificate, serving
from pagefleet_operator.custom_metrics.access import FrontProxy, User
from pagefleet_operator.custom_metrics.wire import Question

DATA = {
    "requestheader-client-ca-file": "PEM",
    "requestheader-allowed-names": json.dumps(["front-proxy"]),
    "requestheader-username-headers": json.dumps(["X-Remote-User"]),
    "requestheader-group-headers": json.dumps(["X-Remote-Group"]),
    "requestheader-extra-headers-prefix": json.dumps(["X-Remote-Extra-"]),
}
PEER = {"subject": ((("organizationName", "o"),), (("commonName", "front-proxy"),))}
HEADERS = CIMultiDict(
    [("X-Remote-User", "jane"), ("X-Remote-Group", "a"), ("X-Remote-Group", "b"), ("X-Remote-Extra-Scopes", "s")]
)


def _proxy(**changed: str) -> FrontProxy:
    proxy = FrontProxy.of({**DATA, **changed})
    assert proxy is not None
    return proxy


def test_the_aggregator_says_for_whom_it_asks() -> None:
    assert _proxy().user(PEER, HEADERS) == User("jane", ("a", "b", "system:authenticated"), (("scopes", ("s",)),))
    anybody = _proxy(**{"requestheader-allowed-names": "[]"})
    assert anybody.user({"subject": ((("commonName", "other"),),)}, HEADERS) is not None


@pytest.mark.parametrize("peer", [None, {}, {"subject": ((("commonName", "other"),),)}])
def test_headers_of_anybody_else_count_for_nothing(peer: dict[str, Any] | None) -> None:
    assert _proxy().user(peer, HEADERS) is None


def test_whom_the_api_server_could_not_authenticate_stays_so() -> None:
    headers = CIMultiDict([("X-Remote-User", "system:anonymous"), ("X-Remote-Group", "system:unauthenticated")])
    assert _proxy().user(PEER, headers) == User("system:anonymous", ("system:unauthenticated",))


def test_a_request_for_nobody_is_nobodys() -> None:
    assert _proxy().user(PEER, CIMultiDict()) is None


def test_without_an_aggregator_nobody_is_believed() -> None:
    assert FrontProxy.of({}) is None


def test_the_review_is_of_what_is_asked() -> None:
    user = User("jane", ("a",), (("scopes", ("s",)),))
    spec = access.review(user, Question("n", "pods", "*", CustomMetric.WAITING, {}))["spec"]
    assert (spec["user"], spec["groups"], spec["extra"]) == ("jane", ["a"], {"scopes": ["s"]})
    assert spec["resourceAttributes"]["subresource"] == CustomMetric.WAITING
    assert spec["resourceAttributes"]["namespace"] == "n"
    path = access.review(User("jane", ()), "/apis")["spec"]
    assert path == {"user": "jane", "groups": [], "nonResourceAttributes": {"path": "/apis", "verb": "get"}}


def test_the_certificate_is_trusted_by_its_authority_for_its_names_alone() -> None:
    made = certificate.make("x-api.n.svc", ("localhost",))
    assert _shaken(made, made.authority, "x-api.n.svc")
    assert _shaken(made, made.authority, "localhost")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        _shaken(made, made.authority, "y-api.n.svc")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"signature failure|self-signed|unable to get"):
        _shaken(made, certificate.make("x-api.n.svc").authority, "x-api.n.svc")


def _shaken(made: certificate.Serving, authority: bytes, host: str) -> bool:
    """A whole TLS handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.tls_context(made).wrap_bio(to_server, to_client, server_side=True)
    trust = ssl.create_default_context(cadata=authority.decode())
    client = trust.wrap_bio(to_client, to_server, server_hostname=host)
    for _ in range(4):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return client.version() is not None
