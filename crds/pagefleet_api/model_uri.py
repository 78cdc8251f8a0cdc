"""The URI of a model: what each scheme looks like, and the name under which a model is kept in a cache."""

import hashlib
import re
from typing import NamedTuple

DOWNLOADED = ("hf", "s3", "gs", "az", "http", "https")
"""Schemes whose files come over the network before the engine starts."""
CEL_DOWNLOADED = "^(hf|s3|gs|az|https?)://"
"""The same, for the API server."""


def cel_downloads(model: str) -> str:
    """Whether anything of `model` comes so, for the API server: itself, one of its adapters or its draft."""
    return (
        f"({model}.uri.matches('{CEL_DOWNLOADED}') || (has({model}.adapters) "
        f"&& {model}.adapters.exists(each, each.uri.matches('{CEL_DOWNLOADED}'))) "
        f"|| (has({model}.draft) && {model}.draft.uri.matches('{CEL_DOWNLOADED}')))"
    )


IN_IMAGE = ("pkg", "file")
"""Schemes that the engine reads from its own image."""
MOUNTED = ("pvc", "oci")
"""Schemes that are mounted into the pod."""

_NAME = "[A-Za-z0-9][A-Za-z0-9._-]*"
_CONTROL = "\\\\x00-\\\\x1f\\\\x7f"
"""In a class of characters: those that no argument of a process can have, or no terminal should be shown."""
SPACE = f" {_CONTROL}"
"""With white space of ASCII; \\s means one thing in Python and another one in CEL."""
_SEGMENT = f"[^/?#{SPACE}]+"
FORMS = {
    "hf": f"hf://{_NAME}/{_NAME}(/{_SEGMENT})*",
    "s3": f"s3://{_NAME}(/{_SEGMENT})*/?",
    "gs": f"gs://{_NAME}(/{_SEGMENT})*/?",
    "az": f"az://{_NAME}(/{_SEGMENT})*/?",
    "http": f"https?://[A-Za-z0-9.\\\\[\\\\]:-]+/[^#{SPACE}]*",
    "file": f"file:///[^{_CONTROL}]+",
    "pkg": "pkg://[A-Za-z0-9._-]+",
    "pvc": f"pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/{_SEGMENT})*/?",
    "oci": f"oci://[A-Za-z0-9][A-Za-z0-9._:/@-]*[A-Za-z0-9](#{_SEGMENT}(/{_SEGMENT})*)?",
}
"""A regular expression for each scheme, with backslashes as CEL's string literals want them."""


def pattern(cel: str) -> re.Pattern[str]:
    """A regular expression as a rule has it, in a string literal of CEL."""
    return re.compile(cel.replace("\\\\", "\\"))


CEL_PATTERN = f"^({'|'.join(FORMS.values())})$"
_PATTERN = pattern(CEL_PATTERN)
ABOVE = "[/#]\\\\.\\\\.(/|$)"
"""What a rule matches a URI with that leads out of its folder."""
_ABOVE = pattern(ABOVE)
_ADDRESS = re.compile(
    r"(https?)://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[^\s\\]*)?", re.ASCII | re.IGNORECASE
)
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_SINGLE_FILES = (".gguf",)
_KEY_BASE = 32
_KEY_DIGEST = 10


class ModelUri(NamedTuple):
    """A model's URI in parts: `hf://org/name` has the scheme `hf` and the rest `org/name`."""

    scheme: str
    rest: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.rest}"

    @property
    def file(self) -> str | None:
        """The one file that it names, as `llama.gguf`; None when it names a folder or repository."""
        last = self.rest.partition("?")[0].rpartition("/")[2]
        return last if last.endswith(_SINGLE_FILES) else None


def parse(text: str) -> ModelUri:
    """Read a URI. Raises ValueError with the forms that are taken."""
    if not _PATTERN.fullmatch(text) or _ABOVE.search(text):
        raise ValueError(f"{text!r} {NO_MODEL}")
    scheme, _, rest = text.partition("://")
    return ModelUri(scheme, rest)


MESSAGE = (
    "give hf://ORG/NAME, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, http(s)://HOST/PATH, "
    "pvc://CLAIM/PATH, oci://IMAGE#FOLDER, file:///PATH in the engine's image or pkg://PACKAGE in it, without .. in "
    "the path"
)
NO_MODEL = f"is no model URI: {MESSAGE}"
"""After the text that was given."""

SINGLE_FILE = "^[^?]*\\\\.gguf(\\\\?|$)"
"""What a rule matches a URI with that names one file."""


def folder_match(without: str) -> str:
    """What a rule matches the URI of a folder with that an engine is told in a list or in JSON.

    Of the hub it is a whole repository: behind its name there can only be a file's. Where the path is the user's own,
    as nothing is downloaded, it has none of the characters `without`.
    """
    folders = "|".join(scheme for scheme in DOWNLOADED if scheme != "hf")
    return f"^(({folders})://|hf://[^/]+/[^/]+$|(pvc|file)://[^{without}{SPACE}]*$)"


def cel_folder(match: str) -> str:
    """Whether `self` is such a URI, for the API server, with what `folder_match` has given."""
    return (
        f"self.matches('{CEL_PATTERN}') && self.matches('{match}') && !self.matches('{ABOVE}') "
        f"&& !self.matches('{SINGLE_FILE}')"
    )


def is_folder(text: str, match: str) -> bool:
    """Whether a text is such a URI, with what `folder_match` has given."""
    try:
        uri = parse(text)
    except ValueError:
        return False
    return pattern(match).match(text) is not None and uri.file is None


def origin(address: str) -> str | None:
    """Scheme, host and port of a web address, as `https://host` or `http://host:8080`: equal where the server is.

    None for what is no such address, or names a user. Source: RFC 6454.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return None
    scheme, host, port = found[1].lower(), found[2].lower(), found[3] or ""
    return f"{scheme}://{host}{'' if port == _DEFAULT_PORTS[scheme] else port}"


def key(uri: str, revision: str | None) -> str:
    """The name of one version of a model: lower-case letters, digits and dashes, at most 43 characters.

    Its end is a digest of URI and revision, so that two models never share a name.
    """
    words = [word for word in re.split(r"[^a-z0-9]+", uri.rstrip("/").rpartition("/")[2].lower()) if word]
    base = "-".join(words)[:_KEY_BASE].strip("-") or "model"
    digest = hashlib.sha256(f"{uri}\n{revision or ''}".encode()).hexdigest()[:_KEY_DIGEST]
    return f"{base}-{digest}"
