"""Models to measure: the shapes of well-known ones without their weights, or a real model by its URI.

A shape becomes a folder with config.json and a byte-level tokenizer that has a word for each id, so that detokenising
is the usual work. Its weights are the engine's dummies.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

Config = dict[str, Any]
_LLAMA_3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_COMMON: Config = {"torch_dtype": "bfloat16", "hidden_act": "silu", "attention_bias": False, "head_dim": 128}
_LLAMA: Config = _COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": _LLAMA_3,
    "tie_word_embeddings": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
SHAPES: dict[str, Config] = {
    "llama-8b-shape": _LLAMA
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "llama-70b-shape": _LLAMA
    | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
    "qwen3-0.6b-shape": _COMMON
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
    },
    "tiny-shape": _LLAMA
    | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 2048, "max_position_embeddings": 8192}
    | {"bos_token_id": 2046, "eos_token_id": 2047},
}
"""By name; tiny-shape is for trying the benchmark itself."""
_BOS, _EOS = "<|bos|>", "<|eos|>"


def write_shape(name: str, parent: Path) -> Path:
    """The folder of a shape, made below `parent` unless it is there. Raises KeyError for an unknown name."""
    config, folder = SHAPES[name], parent / name
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tokenizer.json").exists():
        _tokenizer(config).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": _BOS, "eos_token": _EOS}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def words(config: Config) -> list[str]:
    """The text of each id as tokenizer.json writes it: one byte for the first 256, a word of its own for each other."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    listed = letters + [f"\u0120w{number:x}" for number in range(len(letters), config["vocab_size"])]
    listed[config["bos_token_id"]], listed[config["eos_token_id"]] = _BOS, _EOS
    return listed


def _tokenizer(config: Config) -> Tokenizer:
    vocabulary = {word: number for number, word in enumerate(words(config))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([_BOS, _EOS])
    return tokenizer
