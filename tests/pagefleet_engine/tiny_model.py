"""A tiny random Llama folder as Hugging Face lays one out: real files and tokenizer, senseless answers.

Needs no torch: weights are written with numpy. Same arguments, same bytes.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BOS, EOS, TURN, END_OF_TURN = "<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (BOS, EOS, TURN, END_OF_TURN)
MERGES = (("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("e", "r"), ("Ġ", "a"))
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + message['role']) }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class TinyShape:
    """Sizes of the tiny model; the defaults have grouped-query attention and an untied head."""

    layers: int = 2
    hidden_size: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    intermediate_size: int = 96
    max_positions: int = 512
    tied_head: bool = False
    rope_scaling: bool = True


def write_tiny_model(folder: Path, shape: TinyShape | None = None, seed: int = 0) -> Path:
    """Write config.json, generation_config.json, model.safetensors, the tokenizer; gives `folder`."""
    shape = shape or TinyShape()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    vocab_size = tokenizer.get_vocab_size()
    ids = {text: tokenizer.get_vocab()[text] for text in SPECIAL_TOKENS}
    _write_json(folder / "config.json", _config(shape, vocab_size, ids))
    _write_json(folder / "generation_config.json", {"eos_token_id": [ids[EOS], ids[END_OF_TURN]]})
    _write_json(
        folder / "tokenizer_config.json",
        {"bos_token": BOS, "eos_token": EOS, "chat_template": CHAT_TEMPLATE, "add_bos_token": False},
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(_weights(shape, vocab_size, seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2))


def _tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(left + right for left, right in MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS])
    return tokenizer


def _config(shape: TinyShape, vocab_size: int, ids: dict[str, int]) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
    if shape.rope_scaling:
        rope = {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": 1e-05,
        "rope_parameters": rope,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": shape.tied_head,
        "bos_token_id": ids[BOS],
        "eos_token_id": ids[EOS],
        "dtype": "float32",
    }


def _weights(shape: TinyShape, vocab_size: int, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> np.ndarray[Any, Any]:
        values: np.ndarray[Any, Any] = random.standard_normal((rows, columns)) * gain / columns**0.5
        return values.astype(np.float32)

    hidden, queries, keys = shape.hidden_size, shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    state = {"model.embed_tokens.weight": matrix(vocab_size, hidden, gain=hidden**0.5)}
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        state |= {
            f"{prefix}.input_layernorm.weight": random.uniform(0.5, 1.5, hidden).astype(np.float32),
            f"{prefix}.self_attn.q_proj.weight": matrix(queries, hidden, gain=2.0),
            f"{prefix}.self_attn.k_proj.weight": matrix(keys, hidden, gain=2.0),
            f"{prefix}.self_attn.v_proj.weight": matrix(keys, hidden),
            f"{prefix}.self_attn.o_proj.weight": matrix(hidden, queries),
            f"{prefix}.post_attention_layernorm.weight": random.uniform(0.5, 1.5, hidden).astype(np.float32),
            f"{prefix}.mlp.gate_proj.weight": matrix(shape.intermediate_size, hidden),
            f"{prefix}.mlp.up_proj.weight": matrix(shape.intermediate_size, hidden),
            f"{prefix}.mlp.down_proj.weight": matrix(hidden, shape.intermediate_size),
        }
    state["model.norm.weight"] = random.uniform(0.5, 1.5, hidden).astype(np.float32)
    if not shape.tied_head:
        state["lm_head.weight"] = matrix(vocab_size, hidden, gain=2.0)
    return state
