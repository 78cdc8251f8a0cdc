"""One LoRA adapter's weights by the Hugging Face names of the matrices that they are for."""

import re
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open

from pagefleet_engine.models.adapter_files import AdapterFolder
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.errors import ModelBroken, ModelUnsupported
from pagefleet_engine.models.tensor_names import FUSED, Shapes, expected_shapes, has_experts, layer_name

_FORMATS = ("F32", "BF16", "F16")
"""Number formats, as safetensors calls them."""
_LARGEST = torch.finfo(torch.bfloat16).max
"""Of the format with the least range that weights are kept in."""
_PREFIX = "base_model.model."
_TENSOR = re.compile(re.escape(_PREFIX) + r"(model\.layers\.\d+\.[\w.]+)\.lora_([AB])\.weight")


class Pair(NamedTuple):
    """What an adapter has for one matrix: `down` [rank, in] (LoRA's A), `up` [out, rank] (B, not scaled)."""

    down: torch.Tensor
    up: torch.Tensor


class AdapterSource(Protocol):
    """Where one adapter's weights come from."""

    @property
    def folder(self) -> AdapterFolder:
        """Its name, rank and scale."""
        ...

    @property
    def modules(self) -> frozenset[str]:
        """Modules that it adapts in some layer, such as self_attn.q_proj."""
        ...

    def pair(self, name: str) -> Pair | None:
        """What it has for the matrix of this Hugging Face name, or None."""
        ...


class AdapterWeights:
    """One adapter's file (`AdapterSource`), every tensor of which fits the model."""

    def __init__(self, folder: AdapterFolder, config: ModelConfig) -> None:
        """Looks at all names and shapes. Raises ModelBroken or ModelUnsupported naming file and tensor."""
        self._folder = folder
        try:
            opened: Any = safe_open(folder.weights_path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise ModelBroken(f"{self._origin} is no whole safetensors file: {error}") from error
        self._file = opened
        names, adapted = frozenset[str](opened.keys()), _adapted(config)
        self._bases = frozenset(self._base(name, adapted) for name in names)
        wanted = (_stored(base, letter) for base in sorted(self._bases) for letter in "AB")
        missing = next((name for name in wanted if name not in names), None)
        if missing is not None or not names:
            raise ModelBroken(f"{self._origin} has no tensor {missing or 'at all'}; save the adapter again")
        self._modules = frozenset(_module(base) for base in self._bases)

    @property
    def folder(self) -> AdapterFolder:
        """See `AdapterSource`."""
        return self._folder

    @property
    def modules(self) -> frozenset[str]:
        """See `AdapterSource`."""
        return self._modules

    def pair(self, name: str) -> Pair | None:
        """See `AdapterSource`; float32, on the CPU. Raises ModelBroken for numbers that no batch may hold."""
        base = name.removesuffix(".weight")
        if base not in self._bases:
            return None
        return Pair(self._numbers(base, "A", 1.0), self._numbers(base, "B", self._folder.scale))

    def _numbers(self, base: str, letter: str, scale: float) -> torch.Tensor:
        """A tensor all of whose numbers, times `scale`, are finite on every device.

        All rows of a batch are multiplied by them, those of other requests by 0: and 0 · ∞ is no number.
        """
        name = _stored(base, letter)
        numbers: torch.Tensor = self._file.get_tensor(name).float()
        if not (numbers * scale).abs().max().item() <= _LARGEST:
            raise ModelBroken(
                f"{self._origin}: tensor {name} has numbers that are not finite, or would not be times the scale of "
                f"{scale:g}; they would spoil every answer: train the adapter again, or take an earlier step's"
            )
        return numbers

    @property
    def _origin(self) -> str:
        return f"adapter {self._folder.name!r}: {self._folder.weights_path}"

    def _base(self, name: str, adapted: Shapes) -> str:
        """The matrix that a tensor is for; raises when the model has none such, or one of another shape."""
        found = _TENSOR.fullmatch(name)
        base = found.group(1) if found else ""
        if found is None or base not in adapted:
            modules = ", ".join(sorted({_module(each).rpartition(".")[2] for each in adapted}))
            raise ModelUnsupported(
                f"{self._origin}: tensor {name} is for nothing that this engine adapts in this model, which is lora_A "
                f"and lora_B of {modules} in its layers, the first of which is 0 and the last {_last_layer(adapted)}"
            )
        outputs, inputs = adapted[base]
        stored = self._file.get_slice(name)
        rank, shape = self._folder.rank, tuple(stored.get_shape())
        expected = (rank, inputs) if found.group(2) == "A" else (outputs, rank)
        if shape != expected:
            raise ModelBroken(
                f"{self._origin}: tensor {name} has shape {shape}; for r of {rank}, and the model's {base} of {inputs} "
                f"inputs and {outputs} outputs, it must be {expected}: is the adapter made for another base model?"
            )
        if stored.get_dtype() not in _FORMATS:
            raise ModelUnsupported(
                f"{self._origin}: tensor {name} is {stored.get_dtype()}; this engine reads {', '.join(_FORMATS)}"
            )
        return base


def products(config: ModelConfig, index: int) -> dict[str, tuple[str, ...]]:
    """The products of layer `index` that can be adapted: their fields of `LayerWeights`, and the modules that each
    one is made of, in the order of its outputs."""
    fused = config.architecture in FUSED
    qkv = ("qkv",) if fused else ("q", "k", "v")
    found = {"qkv": tuple(f"self_attn.{name}_proj" for name in qkv), "output": ("self_attn.o_proj",)}
    if has_experts(config, index):
        return found
    gate_up = ("mlp.gate_up_proj",) if fused else ("mlp.gate_proj", "mlp.up_proj")
    return found | {"gate_up": gate_up, "down": ("mlp.down_proj",)}


def _adapted(config: ModelConfig) -> Shapes:
    """The matrices that can be adapted, [out, in], by their names without the end .weight."""
    shapes = expected_shapes(config)
    bases = [
        layer_name(index, module)
        for index in range(config.layers)
        for modules in products(config, index).values()
        for module in modules
    ]
    return {base: shapes[f"{base}.weight"] for base in bases}


def _stored(base: str, letter: str) -> str:
    return f"{_PREFIX}{base}.lora_{letter}.weight"


def _module(base: str) -> str:
    """The name within its layer."""
    return base.split(".", 3)[3]


def _last_layer(adapted: Shapes) -> int:
    return max(int(base.split(".")[2]) for base in adapted)
