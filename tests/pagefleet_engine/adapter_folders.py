"""LoRA adapters' folders as PEFT writes them, with random weights."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Matrices = Mapping[str, np.ndarray[Any, Any]]
PREFIX = "base_model.model."


def stored(base: str, letter: str) -> str:
    """The name of A or B for the matrix whose name is `base` and .weight."""
    return f"{PREFIX}{base}.lora_{letter}.weight"


def write_adapter(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    modules: Sequence[str],
    *,
    rank: int = 4,
    seed: int = 0,
    layers: Sequence[int] | None = None,
    gain: float = 1.0,
    **settings: Any,
) -> Path:
    """An adapter of those matrices in `shapes` ([out, in] by name) whose module is in `modules`; gives `folder`.

    `layers` (None: all) are those that it adapts. `settings` are written to its configuration beside r and lora_alpha.
    """
    random, tensors = np.random.default_rng(seed), dict[str, np.ndarray[Any, Any]]()
    for name, shape in shapes.items():
        base = name.removesuffix(".weight")
        if base.rpartition(".")[2] not in modules or (layers is not None and int(base.split(".")[2]) not in layers):
            continue
        outputs, inputs = shape
        tensors[stored(base, "A")] = (random.standard_normal((rank, inputs)) / inputs**0.5).astype(np.float32)
        tensors[stored(base, "B")] = (random.standard_normal((outputs, rank)) * gain / rank**0.5).astype(np.float32)
    return write_folder(
        folder, tensors, {"r": rank, "lora_alpha": 2 * rank, "target_modules": list(modules)} | settings
    )


def write_folder(folder: Path, tensors: Matrices, config: Mapping[str, Any]) -> Path:
    """These tensors and settings as an adapter's folder; gives `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "bias": "none"} | dict(config)))
    save_file(dict(tensors), folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder
