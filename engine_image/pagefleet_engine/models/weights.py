"""A model's weights by their Hugging Face names, read one at a time from GGUF or safetensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.errors import ModelBroken, ModelUnsupported
from pagefleet_engine.models.gguf import Gguf
from pagefleet_engine.models.source import GgufModel, ModelFiles
from pagefleet_engine.models.tensor_names import EMBEDDING, FINAL_NORM, HEAD, LAYER_PREFIX, expected_shapes

_GGUF_TOP = {EMBEDDING: "token_embd.weight", FINAL_NORM: "output_norm.weight", HEAD: "output.weight"}
_GGUF_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class Weights(Protocol):
    """Where a decoder takes its tensors from."""

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor of a Hugging Face name. Raises ModelBroken when it is missing or has another shape."""
        ...


def open_weights(files: ModelFiles, config: ModelConfig) -> Weights:
    """The weights of these files; nothing is read before it is asked for."""
    shapes = expected_shapes(config)
    if isinstance(files, GgufModel):
        return _GgufWeights(Gguf(files.path), config, shapes)
    return _SafetensorsWeights(files.path, files.weight_files, shapes)


class _GgufWeights:
    def __init__(self, gguf: Gguf, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._gguf, self._config, self._shapes = gguf, config, shapes

    def tensor(self, name: str) -> torch.Tensor:
        stored = _gguf_name(name)
        if stored not in self._gguf.tensors:
            raise ModelBroken(f"{self._gguf.path} has no tensor {stored} ({name})")
        _check_shape(self._gguf.path, stored, self._gguf.tensors[stored].shape, self._shapes[name])
        values = torch.from_numpy(self._gguf.tensor(stored))
        if "q_proj" in name:
            return _half_rotary(values, self._config.heads)
        if "k_proj" in name:
            return _half_rotary(values, self._config.kv_heads)
        return values


def _gguf_name(name: str) -> str:
    if name in _GGUF_TOP:
        return _GGUF_TOP[name]
    index, part = name.removeprefix(LAYER_PREFIX).removesuffix(".weight").split(".", 1)
    return f"blk.{index}.{_GGUF_LAYER[part]}.weight"


def _half_rotary(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo llama.cpp's row order (rotary pairs side by side): [heads x head size, in]."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


class _SafetensorsWeights:
    def __init__(self, folder: Path, paths: tuple[Path, ...], shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._folder, self._shapes = folder, shapes
        self._files: dict[str, Any] = {}
        for path in paths:
            try:
                opened: Any = safe_open(path, framework="pt")
                self._files |= dict.fromkeys(opened.keys(), opened)
            except (SafetensorError, OSError) as error:
                raise ModelBroken(f"{path} is no whole safetensors file: {error}") from error

    def tensor(self, name: str) -> torch.Tensor:
        if name not in self._files:
            raise ModelBroken(f"the safetensors files of {self._folder} have no tensor {name}")
        values: torch.Tensor = self._files[name].get_tensor(name)
        _check_shape(self._folder, name, tuple(values.shape), self._shapes[name])
        if values.dtype not in {torch.float32, torch.bfloat16, torch.float16}:
            raise ModelUnsupported(
                f"{self._folder}: tensor {name} is {values.dtype}; this engine reads float32, bfloat16, float16"
            )
        return values


def _check_shape(origin: Path, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise ModelBroken(f"{origin}: tensor {name} has shape {shape}, the configuration asks for {expected}")
