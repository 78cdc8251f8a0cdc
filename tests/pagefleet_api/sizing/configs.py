"""config.json of well-known models, reduced to the fields that decide memory."""

from typing import Any

Config = dict[str, Any]

LLAMA_8B: Config = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA_70B = LLAMA_8B | {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
}  # fmt: skip
LLAMA_2_7B = LLAMA_8B | {
    "intermediate_size": 11008, "num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096,
    "torch_dtype": "float16",
}  # fmt: skip
QWEN3_0_6B: Config = {
    "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "use_sliding_window": False, "sliding_window": None, "max_window_layers": 28,
}  # fmt: skip
MISTRAL_7B_V01: Config = {
    "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
    "sliding_window": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA_3_4B: Config = {
    "model_type": "gemma3", "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152},
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
        "max_position_embeddings": 131072, "sliding_window": 1024,
    },
}  # fmt: skip
MIXTRAL_8X7B: Config = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
    "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK_V2_LITE: Config = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 102400,
    "max_position_embeddings": 163840, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "q_lora_rank": None, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK_V3 = DEEPSEEK_V2_LITE | {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "vocab_size": 129280, "q_lora_rank": 1536,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip
QWEN3_30B_A3B = QWEN3_0_6B | {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128,
    "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False,
}  # fmt: skip
FALCON_7B: Config = {
    "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
    "multi_query": True, "new_decoder_architecture": False, "vocab_size": 65024, "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}  # fmt: skip
GPT_2: Config = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257,
                 "n_positions": 1024}  # fmt: skip
