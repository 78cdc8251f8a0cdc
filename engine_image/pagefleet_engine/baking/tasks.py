"""What one process of several does: one model on one card at a time, into Triton's cache folder."""

import json
import logging
from pathlib import Path
from typing import NamedTuple

import torch
from triton import knobs

from pagefleet_api.launch import Launch
from pagefleet_engine import logs
from pagefleet_engine.baking import known, rehearsal
from pagefleet_engine.kernels.baked import counted
from pagefleet_engine.models.errors import ModelError
from pagefleet_engine.runner.errors import LaunchImpossible

KEPT_SUFFIXES = (".cubin", ".json")
"""What is loaded of a kernel; the rest shows how it came about."""
log = logging.getLogger(__name__)


class Task(NamedTuple):
    """One model on one card, as named on the command line."""

    model: str
    card: str


def bake(task: Task) -> str | None:
    """Compile what this model launches on this card into Triton's cache folder; why not, if it cannot."""
    try:
        card, subject = known.card(task.card), known.subject(task.model)
        launch = Launch(model=subject.name, tensor_parallel_size=subject.tensor_parallel)
        with counted() as kernels:
            rehearsal.rehearse(launch, subject.config, card)
    except (known.UnknownName, ModelError, LaunchImpossible) as error:
        return str(error)
    log.info("model_rehearsed", extra={"model": task.model, "card": task.card, **kernels.fields()})
    return None


def trim(folder: Path) -> tuple[int, int]:
    """Leave of each kernel what is loaded, wherever the folder is moved; how many kernels, and bytes, there are."""
    groups = list(folder.glob("*/__grp__*.json"))
    for group in groups:
        listed = json.loads(group.read_text())["child_paths"]
        kept = [name for name in listed if name.endswith(KEPT_SUFFIXES)]
        for name in set(listed) - set(kept):
            (group.parent / name).unlink(missing_ok=True)
        group.write_text(json.dumps({"child_paths": {name: name for name in sorted(kept)}}))
    return len(groups), sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def prepare(folder: Path) -> None:
    """Begin a process whose kernels go to `folder`."""
    logs.configure()
    torch.set_num_threads(1)
    knobs.cache.dir = str(folder)
    knobs.compilation.store_binary_only = True
