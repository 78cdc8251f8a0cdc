"""Credentials from the environment, as the keys of a Secret become one. Their values are never told to anybody."""

from collections.abc import Mapping

from pagefleet_fetch.errors import Denied

_NAMES = frozenset({"HF_TOKEN", "HTTP_AUTHORIZATION"})
_PREFIXES = ("AWS_", "AZURE_")
"""GOOGLE_SERVICE_ACCOUNT_KEY is a JSON document, which may have lines."""


def check(environment: Mapping[str, str]) -> None:
    """Raises Denied, with the name alone, for a value that no HTTP header can carry.

    HTTP clients refuse it too, with the value in the words of their error: those end in logs and in the status.
    """
    for name, value in environment.items():
        if (name in _NAMES or name.startswith(_PREFIXES)) and not (value.isascii() and value.isprintable()):
            raise Denied(
                f"{name} holds a line break or another character that no HTTP header can carry; write this key of the "
                "Secret that model.secretRef names anew, without a line break at its end (echo adds one, printf does "
                "not)"
            )
