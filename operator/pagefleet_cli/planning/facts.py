"""A model's sizes from its files on this machine."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pagefleet_api import model_uri
from pagefleet_api.service import InferenceService
from pagefleet_api.sizing import adapters, weights
from pagefleet_api.sizing.facts import CONFIG_FILE, INDEX_FILE, ModelFacts
from pagefleet_api.sizing.fields import ConfigUnusable
from pagefleet_cli.errors import FactsMissing, InputWrong
from pagefleet_cli.planning import online

_LOCAL = "file://"


def check_one_model(services: Iterable[InferenceService], file: str) -> None:
    """Raise InputWrong for services with different models: one --config cannot be about all."""
    uris = sorted({service.spec.model.uri for service in services})
    if len(uris) > 1:
        raise InputWrong(f"--config is one model's, and {file} has {', '.join(uris)}; plan each in a file of its own")


def check_one_draft(services: Iterable[InferenceService], file: str) -> None:
    """Raise InputWrong for services with different drafts, or with none: one --draft cannot be about all."""
    uris = sorted({service.spec.model.draft.uri for service in services if service.spec.model.draft is not None})
    if len(uris) != 1:
        raise InputWrong(f"--draft is of one model.draft, and {file} has {', '.join(uris) or 'none'}; leave it out")


def of_service(
    service: InferenceService, config: Path | None, index: Path | None, *, fetch: bool = False
) -> ModelFacts:
    """From --config and --index where given, else from the folder that a file:// URI names, else over the network.

    Raises FactsMissing or InputWrong, naming the file and the way out.
    """
    uri = service.spec.model.uri
    if config is not None:
        folder = config if config.is_dir() else config.parent
        return _read(config / CONFIG_FILE if config.is_dir() else config, folder if index is None else None, index)
    folder = Path(uri.removeprefix(_LOCAL))
    if uri.startswith(_LOCAL) and (folder / CONFIG_FILE).is_file():
        return _read(folder / CONFIG_FILE, folder if index is None else None, index)
    if fetch and model_uri.parse(uri).scheme in model_uri.DOWNLOADED:
        with online.fetched(uri, service.spec.model.revision) as fetched:
            return _read(fetched / CONFIG_FILE, fetched, None)
    name = f"InferenceService {service.namespace}/{service.name}"
    if uri.startswith("pkg://") or model_uri.parse(uri).file is not None:
        raise FactsMissing(
            f"{name}: spec.model.uri is {uri}, a .gguf file, of which nothing is read before a pod runs; its "
            f"status.capacity tells what it holds then, or give --config PATH of the {CONFIG_FILE} it was made from"
        )
    raise FactsMissing(
        f"{name}: spec.model.uri is {uri}, and there is no {CONFIG_FILE} of it on this machine; "
        f"give --config PATH, and --index PATH of its {INDEX_FILE} if it has one, or --fetch for one that is downloaded"
    )


def draft_of(service: InferenceService, config: Path | None, *, fetch: bool = False) -> ModelFacts | None:
    """Of the model that guesses, likewise, from --draft where that is given; None where there is none."""
    draft = service.spec.model.draft
    if draft is None:
        return None
    if config is not None:
        return _read(config / CONFIG_FILE, config, None) if config.is_dir() else _read(config, None, None)
    folder = Path(draft.uri.removeprefix(_LOCAL))
    if draft.uri.startswith(_LOCAL) and (folder / CONFIG_FILE).is_file():
        return _read(folder / CONFIG_FILE, folder, None)
    if fetch and draft.downloaded:
        with online.fetched(draft.uri, draft.revision) as fetched:
            return _read(fetched / CONFIG_FILE, fetched, None)
    raise FactsMissing(
        f"InferenceService {service.namespace}/{service.name}: spec.model.draft.uri is {draft.uri}, and there is no "
        f"{CONFIG_FILE} of it on this machine; give --draft PATH of it, or --fetch for one that is downloaded"
    )


def ranks_of(service: InferenceService, *, fetch: bool = False) -> dict[str, int]:
    """Of adapters of which the service does not say them, by name: from folders on this machine, and from the network.

    One that is in neither is left out. Raises FactsMissing or InputWrong.
    """
    found: dict[str, int] = {}
    for adapter in service.spec.model.adapters:
        folder = Path(adapter.uri.removeprefix(_LOCAL))
        if adapter.rank is not None:
            continue
        if adapter.uri.startswith(_LOCAL) and (folder / adapters.CONFIG_FILE).is_file():
            found[adapter.name] = _rank(folder)
        elif fetch and adapter.downloaded:
            with online.fetched(adapter.uri, adapter.revision) as fetched:
                found[adapter.name] = _rank(fetched)
    return found


def _rank(folder: Path) -> int:
    try:
        return adapters.AdapterFacts.read(_json(folder / adapters.CONFIG_FILE)).rank
    except ConfigUnusable as error:
        raise InputWrong(f"{folder}: {error}") from error


def _read(config: Path, folder: Path | None, index: Path | None) -> ModelFacts:
    if index is None and folder is not None and (folder / INDEX_FILE).is_file():
        index = folder / INDEX_FILE
    tensors = None if folder is None else _tensors(folder)
    try:
        return ModelFacts.read(_json(config), tensors=tensors, index=None if index is None else _json(index))
    except ConfigUnusable as error:
        raise InputWrong(f"{config.parent}: {error}") from error


def _tensors(folder: Path) -> Sequence[weights.Tensor] | None:
    """Of every safetensors file of a folder; None when one of them is missing."""
    listed = _json(folder / INDEX_FILE).get("weight_map", {}) if (folder / INDEX_FILE).is_file() else {}
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise InputWrong(f"{folder / INDEX_FILE}: weight_map must say a file's name for each tensor; download it again")
    names = sorted(set(listed.values())) or sorted(path.name for path in folder.glob("*.safetensors"))
    if not names or not all((folder / name).is_file() for name in names):
        return None
    return [tensor for name in names for tensor in _header(folder / name)]


def _header(path: Path) -> list[weights.Tensor]:
    with path.open("rb") as file:
        try:
            return weights.read_header(file.read(weights.header_length(file.read(weights.LENGTH_BYTES))))
        except ConfigUnusable as error:
            raise InputWrong(f"{path}: {error}; download it again") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise InputWrong(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputWrong(f"{path}: this is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InputWrong(f"{path}: a JSON object is needed, this is a {type(found).__name__}")
    return found
