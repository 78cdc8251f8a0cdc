"""Models of a plain web server: one file, or a folder as Hugging Face lays it out."""

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from urllib.parse import quote, urlsplit, urlunsplit

from pagefleet_fetch.errors import Missing, Unusable
from pagefleet_fetch.listing import ADAPTER_CONFIG, SAFETENSORS_INDEX, Listing, RemoteFile
from pagefleet_fetch.sources import Stream
from pagefleet_fetch.web import Web

_WHOLE = "model.safetensors"
_NAMES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    _WHOLE,
)
_ADAPTERS_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_INDEX_LIMIT_BYTES = 64 << 20


class Pages:
    """A web server has no listing: the usual names are asked for, of an adapter where no weights of a model are there,
    and the weights' index tells the rest.

    only: the names that are asked for, and no others. same_origin: what a redirect names elsewhere is Denied.
    """

    def __init__(
        self,
        uri: str,
        file: str | None,
        environment: Mapping[str, str],
        *,
        only: Collection[str] | None = None,
        same_origin: bool = False,
    ) -> None:
        self._uri, self._file, self._only = uri, file, only
        given = environment.get("HTTP_AUTHORIZATION")
        way_out = (
            "put the whole header, as 'Bearer …' or 'Basic …', into the key HTTP_AUTHORIZATION of the Secret that "
            "model.secretRef names"
        )
        headers = {"Authorization": given} if given else {}
        self._web = Web(headers, way_out=way_out, same_origin=same_origin)

    def listing(self) -> Listing:
        """The one file, or those of the usual names that are there."""
        if self._file is not None:
            return Listing((self._remote(self._file),))
        names = (*_NAMES, SAFETENSORS_INDEX) if self._only is None else sorted(self._only)
        found = self._there(names)
        if self._only is None and not {file.path for file in found} & {_WHOLE, SAFETENSORS_INDEX}:
            found += self._there((ADAPTER_CONFIG, *_ADAPTERS_WEIGHTS))
        if not any(file.path in {"config.json", ADAPTER_CONFIG} for file in found):
            words = f"has no config.json, nor {ADAPTER_CONFIG}: give a .gguf file, or a model's or adapter's folder"
            raise Missing(f"{self._uri} {words}")
        if self._only is None and any(file.path == SAFETENSORS_INDEX for file in found):
            found += [self._remote(name) for name in self._indexed() if name != _WHOLE]
        return Listing(tuple(found))

    def read(self, file: RemoteFile, offset: int) -> AbstractContextManager[Stream]:
        """The file, if its ETag is the one that was listed; from the start where nothing tells two versions apart."""
        resumable = file.etag is not None and file.size_bytes is not None
        return self._web.read(self._address(file.path), offset if resumable else 0, file.etag)

    def _there(self, names: Iterable[str]) -> list[RemoteFile]:
        return [file for name in names if (file := self._if_there(name)) is not None]

    def _if_there(self, name: str) -> RemoteFile | None:
        try:
            return self._remote(name)
        except Missing:
            return None

    def _remote(self, name: str) -> RemoteFile:
        headers = {key.lower(): value for key, value in self._web.head(self._address(name)).items()}
        size = headers.get("content-length", "")
        return RemoteFile(name, int(size) if size.isdecimal() else None, None, headers.get("etag"))

    def _address(self, name: str) -> str:
        if self._file is not None:
            return self._uri
        parts = urlsplit(self._uri)
        return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name)}"))

    def _indexed(self) -> list[str]:
        address, text = self._address(SAFETENSORS_INDEX), b""
        with self._web.read(address, 0) as stream:
            for chunk in stream.chunks:
                text += chunk
                if len(text) > _INDEX_LIMIT_BYTES:
                    raise Unusable(f"{address} is larger than an index of weights ever is")
        return weight_files(text, address)


def weight_files(index: bytes, what: str) -> list[str]:
    """The files that an index of weights names. Raises Unusable when it is not one."""
    try:
        return sorted({str(name) for name in json.loads(index)["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Unusable(f"{what} is not a safetensors index with a weight_map: {error!r}") from error
