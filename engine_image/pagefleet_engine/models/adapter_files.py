"""A LoRA adapter's folder as PEFT writes one: which files it has and what its configuration says. Reads no weights.

LoRA (Hu et al. 2021): a linear layer's matrix W acts as W + scale · B · A, with A [rank, in] and B [out, rank].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pagefleet_api.launch import Adapter
from pagefleet_engine.models.config_fields import Fields, read_json
from pagefleet_engine.models.errors import ModelNotFound

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_DEFAULT_RANK, _DEFAULT_ALPHA = 8, 8
_REFUSED = {
    "use_dora": "DoRA needs the norms of all columns of W + B · A, which this engine does not keep",
    "use_qalora": "QALoRA's pooled inputs are not computed here",
    "use_bdlora": "block-diagonal matrices are not computed here",
    "alora_invocation_tokens": "this engine adapts all tokens of a request, an activated LoRA only some",
    "arrow_config": "this engine takes one adapter for a request and does not route between them",
    "lora_bias": "this engine adapts matrices alone, no biases",
    "fan_in_fan_out": "the base models that this engine runs store no matrix the other way round",
    "modules_to_save": "this engine adapts linear layers and replaces no module; train with LoRA alone",
    "rank_pattern": "this engine takes one rank for all of an adapter's matrices",
    "alpha_pattern": "this engine takes one scale for all of an adapter's matrices",
    "trainable_token_indices": "this engine adapts linear layers, no embeddings",
    "layer_replication": "this engine computes each layer once",
    "target_parameters": "this engine adapts linear layers, no single parameters",
}
"""Fields of PEFT's LoraConfig that ask for what is not made here when they are set, and why it is not."""
_CHANGES_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to begin (`init_lora_weights`) that take a part out of the base model's own weights."""


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """One adapter; `scale`, by which B · A is multiplied, is lora_alpha / rank, or lora_alpha / √rank (rsLoRA)."""

    name: str
    weights_path: Path
    rank: int
    scale: float


def read_adapters(adapters: Sequence[Adapter]) -> tuple[AdapterFolder, ...]:
    """The folders of these adapters. Raises ModelNotFound for a missing file, ModelUnsupported or ModelBroken naming
    the file and the field."""
    return tuple(_read(adapter) for adapter in adapters)


def _read(adapter: Adapter) -> AdapterFolder:
    folder = Path(adapter.path)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise ModelNotFound(
                f"adapter {adapter.name!r}: there is no {folder / name}; give --adapter {adapter.name}=PATH the folder "
                f"that PEFT's save_pretrained wrote, with {CONFIG_FILE} and {WEIGHTS_FILE}"
            )
    path = folder / CONFIG_FILE
    config = Fields(f"adapter {adapter.name!r}: {path}", read_json(path))
    _check(config)
    rank, alpha = config.count("r", _DEFAULT_RANK), config.number("lora_alpha", _DEFAULT_ALPHA)
    divisor = rank**0.5 if config.flag("use_rslora") else rank
    return AdapterFolder(adapter.name, folder / WEIGHTS_FILE, rank, alpha / divisor)


def _check(config: Fields) -> None:
    config.only("peft_type", "LORA")
    config.only("bias", "none")
    for field, reason in _REFUSED.items():
        if config.values.get(field):
            raise config.refusal(field, reason)
    begin = config.values.get("init_lora_weights")
    if isinstance(begin, str) and begin.lower().startswith(_CHANGES_THE_BASE):
        raise config.refusal(
            "init_lora_weights",
            "such an adapter fits a base model with other weights; have PEFT convert it to a plain one "
            "(save_pretrained with path_initial_model_for_weight_conversion)",
        )
