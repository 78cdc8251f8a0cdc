"""Which models the operator reads itself before a pod runs, and with what of a Secret. Pure.

Whoever writes a service chooses URI and Secret, and could point both at anything that the operator reaches: the API
server, a cloud's metadata service, somebody else's store. So it asks the hub and the public clouds, whose addresses no
user chooses, and beside them only what the administrator lists. A bucket is opened with keys of the Secret alone, never
with an identity of the operator's or its node's.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pagefleet_api import model_uri
from pagefleet_api.model_source import ModelSource

_LATER = "known once a pod is ready; `pagefleet plan --fetch` reads it from where you are"
_UNOPENED = f"the operator may not read the Secret of model.secretRef (the chart's readModelSecrets lets it); {_LATER}"
_WEB = ("http", "https")
_ACCOUNT_KEY = "GOOGLE_SERVICE_ACCOUNT_KEY"
_ACCOUNT_FIELDS = ("type", "project_id", "private_key_id", "private_key", "client_email", "client_id", "disable_oauth")
"""Of a Google account's JSON; others name addresses and files that the library would ask or open."""


class SecretUnusable(Exception):
    """A Secret that the operator does not open a model with; the text has the way out, and no value of it."""


class _Keys(NamedTuple):
    """What of a Secret goes to the fetcher. `needed`: all of one of these; `addresses` must be listed."""

    needed: tuple[tuple[str, ...], ...]
    also: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


_AWS_UNSIGNED = "AWS_SKIP_SIGNATURE"
_KEYS = {
    "hf": _Keys((("HF_TOKEN",),), addresses=("HF_ENDPOINT",)),
    "s3": _Keys(
        (("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), (_AWS_UNSIGNED,)),
        also=("AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"),
        addresses=("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
    ),
    "gs": _Keys(((_ACCOUNT_KEY,),), addresses=("GOOGLE_BASE_URL",)),
    "az": _Keys(
        (
            ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
            ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_SAS_TOKEN"),
        ),
        addresses=("AZURE_STORAGE_ENDPOINT",),
    ),
    **dict.fromkeys(_WEB, _Keys((("HTTP_AUTHORIZATION",),))),
}
_SHAPES = {
    "AWS_REGION": re.compile("[a-z0-9-]{1,40}"),
    "AWS_DEFAULT_REGION": re.compile("[a-z0-9-]{1,40}"),
    "AZURE_STORAGE_ACCOUNT_NAME": re.compile("[a-z0-9]{3,24}"),
    _AWS_UNSIGNED: re.compile("true"),
}
"""Of values that become part of a host's name, or that another value of would bring in an identity of the machine."""


@dataclass(frozen=True, slots=True)
class Access:
    """What this operator may do.

    origins: what else it may ask, as `model_uri.origin` gives it. secrets: it may read Secrets.
    """

    origins: frozenset[str] = frozenset()
    secrets: bool = False

    def refusal(self, model: ModelSource) -> str | None:
        """Why a model is not read here, for the status; None where it is.

        Of one that is a single file, as .gguf, it is not: that has its sizes and its weights in one.
        """
        uri = model.location
        if uri.scheme not in _KEYS or uri.file is not None:
            return f"{uri} is read by the pod alone; known once one is ready"
        if uri.scheme in _WEB and asked(uri) not in self.origins:
            words = "an address of the user's choice, which the operator asks only if modelOrigins of its chart has it"
            return f"{uri}: {asked(uri)} is {words}; {_LATER}"
        if model.secret_ref is not None:
            return None if self.secrets else _UNOPENED
        if uri.scheme == "hf" or uri.scheme in _WEB:
            return None
        return f"{uri}: the operator opens a bucket with the keys of model.secretRef alone, and there is none; {_LATER}"

    def environment(self, uri: model_uri.ModelUri, secret: Mapping[str, str]) -> dict[str, str]:
        """What of a Secret's values the fetcher of this model gets. Raises SecretUnusable."""
        keys, given = _KEYS[uri.scheme], {name: value.strip() for name, value in secret.items() if value.strip()}
        ways = [" and ".join(way) for way in keys.needed]
        if not any(all(name in given for name in way) for way in keys.needed):
            raise SecretUnusable(f"a Secret with {', or '.join(ways)} is read here alone")
        taken = {*(name for way in keys.needed for name in way), *keys.also, *keys.addresses}
        result = {name: value for name, value in given.items() if name in taken}
        for problem in self._problems(keys, result):
            raise SecretUnusable(problem)
        if _ACCOUNT_KEY in result:
            result[_ACCOUNT_KEY] = self._account(result[_ACCOUNT_KEY])
        return result

    def _problems(self, keys: _Keys, given: Mapping[str, str]) -> Iterator[str]:
        for name in keys.addresses:
            if name in given and not self._listed(given[name]):
                yield _unlisted(name)
        for name, shape in _SHAPES.items():
            if name in given and not shape.fullmatch(given[name]):
                yield f"{name} must match {shape.pattern} to be used by the operator"

    def _account(self, text: str) -> str:
        """A Google account's JSON, reduced to what only that account's owner decides."""
        try:
            found: Any = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise SecretUnusable(f"{_ACCOUNT_KEY} holds no JSON object")
        fields: tuple[str, ...] = _ACCOUNT_FIELDS
        if "gcs_base_url" in found:
            if not self._listed(str(found["gcs_base_url"])):
                raise SecretUnusable(_unlisted(f"gcs_base_url of {_ACCOUNT_KEY}"))
            fields = (*fields, "gcs_base_url")
        return json.dumps({name: found[name] for name in fields if name in found})

    def _listed(self, address: str) -> bool:
        return model_uri.origin(address) in self.origins


def asked(uri: model_uri.ModelUri) -> str:
    """Who is asked for a model: a bucket, a web server's address, or the hub. A busy one is so for all its models."""
    if uri.scheme == "hf":
        return "the hub"
    if uri.scheme in _WEB:
        return model_uri.origin(str(uri)) or "its host"
    return f"{uri.scheme}://{uri.rest.partition('/')[0]}"


def _unlisted(name: str) -> str:
    return f"{name} is an address that the operator may not ask (modelOrigins of its chart lists those); {_LATER}"
