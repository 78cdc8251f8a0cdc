"""What flags may say, read and checked: the texts of wrong ones name the value and an example."""

import argparse
import re
from typing import NamedTuple

from pagefleet_api import model_uri, quantity

_SHARD = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


class Address(NamedTuple):
    """Where to listen; an empty host means every interface."""

    host: str
    port: int


def shard(text: str) -> str:
    """A name of a shard, which is a label's value."""
    if not _SHARD.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} must be at most 40 small letters, digits and dashes, for example team-a"
        )
    return text


def folder(text: str) -> str:
    """A folder on a node, which is not its root."""
    if not text.startswith("/") or text.strip("/") == "" or ".." in text.split("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is no folder of its own, for example /var/lib/pagefleet/models")
    return text.rstrip("/")


def size(text: str) -> str:
    """A quantity of bytes."""
    try:
        quantity.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def origins(text: str) -> frozenset[str]:
    """Web servers' addresses without a path, between commas or spaces."""
    return frozenset(map(_origin, words(text)))


def _origin(text: str) -> str:
    found = model_uri.origin(text)
    if found is None or text.rstrip("/").count("/") != 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not http(s)://HOST[:PORT], as https://minio.storage:9000")
    return found


def words(text: str) -> list[str]:
    """Words between commas or spaces."""
    return [word for word in text.replace(",", " ").split() if word]


def address(text: str) -> Address:
    """`[HOST]:PORT`."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not [HOST]:PORT, for example :8080 or 127.0.0.1:8080")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))
