"""What a source holds, and which of it an engine needs. Pure."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

from pagefleet_fetch.errors import Unusable

_TEXT = (".json", ".jinja", ".model", ".tiktoken", ".txt", ".py")
_OTHER_WEIGHTS = (".bin", ".pt", ".pth")
_FOREIGN_FOLDERS = frozenset({"onnx", "openvino", "coreml", "original", "metal", "flax", "tf"})
_NOT_FOR_ENGINES = frozenset({"requirements.txt", "LICENSE.txt", "NOTICE.txt", "USE_POLICY.txt"})
SAFETENSORS_INDEX = "model.safetensors.index.json"
ADAPTER_CONFIG = "adapter_config.json"
FACTS = frozenset({"config.json", "generation_config.json", SAFETENSORS_INDEX, "params.json", ADAPTER_CONFIG})
"""Files that say how large a model or an adapter is."""
_FACT_LIMIT_BYTES = 8 << 20
"""Of each of them whose size is not told."""
_FACTS_LIMIT_BYTES = 32 << 20
"""Of all of them: the largest index there is has a quarter of it. Who reads them has little room and shares it."""


class Checksum(NamedTuple):
    """What the source says of a file's bytes; `git-sha1` is git's name of a blob."""

    kind: Literal["sha256", "git-sha1"]
    value: str


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a source, by its path in the model's folder.

    limit_bytes: what may come of it at most where its size is not told; None: anything.
    """

    path: str
    size_bytes: int | None = None
    checksum: Checksum | None = None
    etag: str | None = None
    limit_bytes: int | None = None

    @property
    def identity(self) -> str:
        """The name of these bytes: another version of the file has another one."""
        parts = (self.path, self.size_bytes, self.checksum and tuple(self.checksum), self.etag)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a source, at one revision where it has revisions."""

    files: tuple[RemoteFile, ...]
    revision: str | None = None


def needed(files: Iterable[RemoteFile], what: str) -> tuple[RemoteFile, ...]:
    """The files that an engine loads, by path: weights in one format, configuration, tokenizer, templates.

    Safetensors win over GGUF and both over PyTorch's own files; Mistral's `consolidated` copy and the folders of
    other frameworks stay away. Raises Unusable, naming `what`, for a path that leaves the folder, for several GGUF
    files without anything else, and when there are no weights.
    """
    usable = [file for file in files if _is_inside(file.path, what) and not _is_foreign(file.path)]
    weights = _weights(usable, what)
    texts = [file for file in usable if file.path.endswith(_TEXT) and file.path not in _NOT_FOR_ENGINES]
    if not _have(weights, ".safetensors"):
        texts = [file for file in texts if not file.path.endswith(SAFETENSORS_INDEX)]
    if _have(weights, ".safetensors", ".gguf"):
        texts = [file for file in texts if not file.path.endswith(".bin.index.json")]
    return tuple(sorted({*weights, *texts}, key=lambda file: file.path))


def facts(files: Iterable[RemoteFile], what: str) -> tuple[RemoteFile, ...]:
    """Only the files that say how large the model is. Raises Unusable, naming `what`, when they cannot be these."""
    found = tuple(sorted((file for file in files if file.path in FACTS), key=lambda file: file.path))
    size = sum(file.size_bytes or 0 for file in found)
    if size > _FACTS_LIMIT_BYTES:
        names = ", ".join(file.path for file in found)
        raise Unusable(f"{what}: {names} have {size} bytes, and files that tell a model's size never have so many")
    untold = (file if file.size_bytes is not None else replace(file, limit_bytes=_FACT_LIMIT_BYTES) for file in found)
    return tuple(untold)


def _weights(files: Sequence[RemoteFile], what: str) -> list[RemoteFile]:
    tensors = [file for file in files if file.path.endswith(".safetensors")]
    whole = [file for file in tensors if not PurePosixPath(file.path).name.startswith("consolidated")]
    if tensors:
        return whole or tensors
    packed = [file for file in files if file.path.endswith(".gguf")]
    if len(packed) > 1:
        names = ", ".join(sorted(file.path for file in packed)[:8])
        raise Unusable(f"{what} has {len(packed)} .gguf files ({names}); put the name of one at the URI's end")
    others = [file for file in files if file.path.endswith(_OTHER_WEIGHTS)]
    if not packed and not others:
        raise Unusable(f"{what} has no weights: no .safetensors, .gguf, .bin or .pt file; is it a model's folder?")
    return packed or others


def _have(files: Iterable[RemoteFile], *suffixes: str) -> bool:
    return any(file.path.endswith(suffixes) for file in files)


def _is_inside(path: str, what: str) -> bool:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or "\0" in path:
        raise Unusable(f"{what} names the file {path!r}, which would lie outside of the model's folder")
    return True


def _is_foreign(path: str) -> bool:
    folders = PurePosixPath(path).parts[:-1]
    hidden = any(part.startswith(".") for part in PurePosixPath(path).parts)
    return hidden or not _FOREIGN_FOLDERS.isdisjoint(folders)
