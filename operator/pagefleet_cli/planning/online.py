"""A model's config.json and index over the network, kept for the next time where the revision never changes."""

import contextlib
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pagefleet_api import model_uri
from pagefleet_cli.errors import FactsMissing

_COMMIT = re.compile(r"[0-9a-f]{40}")


@contextlib.contextmanager
def fetched(uri: str, revision: str | None) -> Iterator[Path]:
    """A folder with the two files. Raises FactsMissing with the fetcher's words, which have the way out."""
    if revision is not None and _COMMIT.fullmatch(revision):
        yield _fetch(uri, revision, _cache() / model_uri.key(uri, revision))
        return
    with tempfile.TemporaryDirectory(prefix="pagefleet-facts-") as work:
        yield _fetch(uri, revision, Path(work, "model"))


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagefleet" / "facts"


def _fetch(uri: str, revision: str | None, into: Path) -> Path:
    try:  # the hub's and the buckets' clients are an extra of their own, and take a while to import
        from pagefleet_fetch.download import Patience
        from pagefleet_fetch.errors import FetchError
        from pagefleet_fetch.fetching import Request, fetch
    except ModuleNotFoundError as error:
        raise FactsMissing(f"--fetch needs {error.name}: pip install '.[cli,fetch]' in a checkout") from error

    logging.getLogger("pagefleet_fetch").setLevel(logging.ERROR)
    request = Request(
        uri=uri, into=into, revision=revision, only_facts=True, patience=Patience(attempts=2), environment=os.environ
    )
    try:
        fetch(request)
    except FetchError as error:
        raise FactsMissing(" ".join(str(error).split())) from error
    return into
