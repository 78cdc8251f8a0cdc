"""API keys: who may ask, and the salt that keeps one key's prefix cache from another's."""

import hashlib
import hmac
from collections.abc import Sequence
from typing import NamedTuple, Self

from pagefleet_engine.api.errors import KeyRefused

_SCHEME = "bearer"
_SALT_CHARS = 16
_CLIENT_SALT_CHARS = 32


class Caller(NamedTuple):
    """Whose request it is: whom it shares cached prefixes with, and who it is where tenants share fairly."""

    cache_salt: str
    tenant: str

    @classmethod
    def of(cls, tenant_salt: str, client_salt: str | None, user: str | None) -> Self:
        """From `Keys.tenant_salt` and what the request has as `cache_salt` and `user`.

        The tenant is the API key where keys are configured, else the user; without either all are one.
        """
        named = tenant_salt or (user and hashlib.sha256(user.encode()).hexdigest()[:_SALT_CHARS])
        return cls(cache_salt(tenant_salt, client_salt), named or "")


class Keys:
    """The configured keys; with none, everybody may ask and all share one cache."""

    def __init__(self, keys: Sequence[str]) -> None:
        encoded = [key.encode("utf-8", "surrogateescape") for key in keys]
        self._salts = {key: hashlib.sha256(key).hexdigest()[:_SALT_CHARS] for key in encoded}

    def tenant_salt(self, authorization: str | None) -> str:
        """The cache salt of the key in an `Authorization` header; raises `KeyRefused`.

        The header's text is its bytes as latin-1, as ASGI servers give it; a key's are UTF-8. Every key is
        compared, each in constant time, so that the time tells nothing about any.
        """
        if not self._salts:
            return ""
        scheme, _, credential = (authorization or "").partition(" ")
        if scheme.lower() != _SCHEME or not credential:
            raise KeyRefused("This server needs an API key: send the header Authorization: Bearer KEY.")
        sent, found = credential.encode("latin-1").strip(), None
        for key, salt in self._salts.items():
            if hmac.compare_digest(key, sent):
                found = salt
        if found is None:
            raise KeyRefused("The API key is not known here.")
        return found


def cache_salt(tenant_salt: str, client_salt: str | None) -> str:
    """The salt of one request's prefix cache: the tenant's, and what the client itself sent as `cache_salt`.

    Hashed together, so that no `cache_salt` reaches into another tenant's cache.
    """
    if client_salt is None:
        return tenant_salt
    return hashlib.sha256(f"{tenant_salt}:{client_salt}".encode()).hexdigest()[:_CLIENT_SALT_CHARS]
