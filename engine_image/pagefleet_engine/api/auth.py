"""API keys: who may ask, and the salt that keeps one key's prefix cache from another's."""

import hashlib
import hmac
from collections.abc import Sequence

from pagefleet_engine.api.errors import KeyRefused

_SCHEME = "bearer"
_SALT_CHARS = 16


class Keys:
    """The configured keys; with none, everybody may ask and all share one cache."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._salts = {key.encode(): hashlib.sha256(key.encode()).hexdigest()[:_SALT_CHARS] for key in keys}

    def tenant_salt(self, authorization: str | None) -> str:
        """The cache salt of the key in an `Authorization` header; raises `KeyRefused`.

        Every key is compared, each in constant time, so that the time tells nothing about any.
        """
        if not self._salts:
            return ""
        scheme, _, credential = (authorization or "").partition(" ")
        if scheme.lower() != _SCHEME or not credential:
            raise KeyRefused("This server needs an API key: send the header Authorization: Bearer KEY.")
        sent, found = credential.strip().encode(), None
        for key, salt in self._salts.items():
            if hmac.compare_digest(key, sent):
                found = salt
        if found is None:
            raise KeyRefused("The API key is not known here.")
        return found
