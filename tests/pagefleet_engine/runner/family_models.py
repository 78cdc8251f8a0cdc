"""A tiny random model of each family: transformers makes and saves it, our reader reads the folder."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

WINDOW = 9
VOCABULARY = 99
LONG = [1.0 + 0.5 * i for i in range(6)]
SHORT = [1.0 + 0.1 * i for i in range(6)]
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": SHORT, "long_factor": LONG}
BOTH_LINEAR = {"full_attention": LINEAR, "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}
EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 32}


@dataclass(frozen=True)
class Family:
    """A class of transformers and what its configuration has beside `SIZES`."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    """The model's class where its name does not follow from the configuration's."""
    shortest: int = 4
    """Tokens of the shortest text for which transformers and we compute the same."""


FAMILIES = {
    "llama": Family("Llama"),
    "mistral": Family("Mistral", {"sliding_window": WINDOW, "head_dim": 32}),
    "mistral without window": Family("Mistral", {"sliding_window": None}),
    "qwen2": Family("Qwen2"),
    "qwen2, windows": Family("Qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}),
    "qwen2, yarn": Family("Qwen2", {"rope_parameters": YARN}),
    "qwen3": Family("Qwen3", {"head_dim": 32}),
    "gemma": Family("Gemma", {"head_dim": 32}),
    "gemma2": Family("Gemma2", {"head_dim": 32, "sliding_window": WINDOW, "query_pre_attn_scalar": 24,
                                "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": Family("Gemma3Text", {"head_dim": 32, "sliding_window": WINDOW, "query_pre_attn_scalar": 24,
                                    "rope_parameters": BOTH_LINEAR, "sliding_window_pattern": 2}, "Gemma3ForCausalLM"),
    "phi3": Family("Phi3", {"sliding_window": WINDOW}),
    "phi4, partial longrope": Family("Phi3", {"rope_parameters": LONGROPE | {"partial_rotary_factor": 0.75},
                                              "original_max_position_embeddings": 12}, shortest=13),
    "smollm3": Family("SmolLM3", {"no_rope_layer_interval": 2}),
    "smollm3, windows": Family("SmolLM3", {"no_rope_layer_interval": 2, "use_sliding_window": True,
                                           "sliding_window": WINDOW}),
    "granite": Family("Granite", {"embedding_multiplier": 12.0, "attention_multiplier": 0.2, "logits_scaling": 6.0,
                                  "residual_multiplier": 0.22}),
    "olmo2": Family("Olmo2"),
    "mixtral": Family("Mixtral", {"num_local_experts": 6, "sliding_window": WINDOW}),
    "qwen3 moe": Family("Qwen3Moe", EXPERTS | {"norm_topk_prob": True}),
    "qwen3 moe, some dense layers": Family("Qwen3Moe", EXPERTS | {"decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    "olmoe": Family("Olmoe", {"num_experts": 6, "num_experts_per_tok": 3}),
}  # fmt: skip


def write(family: Family, folder: Path, seed: int = 0) -> Any:
    """The reference model in float32, saved to `folder`."""
    settings = getattr(transformers, f"{family.name}Config")(**SIZES | family.settings)
    torch.manual_seed(seed)
    model_class = getattr(transformers, family.model or f"{family.name}ForCausalLM")
    model = model_class._from_config(settings, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            _randomise(name, tensor)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return model


def _randomise(name: str, tensor: torch.Tensor) -> None:
    """Numbers large enough that no part can be left out unseen."""
    if "norm" in name:
        tensor.add_(torch.rand_like(tensor) - 0.5)
    elif "embed" in name:
        tensor.normal_()
    else:
        tensor.normal_(0.0, 1.5 / tensor.shape[-1] ** 0.5)
