"""What the weights of each family are called on disk, and their shapes. Pure."""

from pagefleet_engine.models.config import ModelConfig

EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
LAYER_PREFIX = "model.layers."
FUSED = frozenset({"phi3"})
"""Architectures whose files hold queries, keys and values in one matrix, and gate and up in one."""
NORMS = {
    "pre": {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
    "sandwich": {
        "input_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "post_mlp_norm": "post_feedforward_layernorm",
    },
    "post": {"post_attention_norm": "post_attention_layernorm", "post_mlp_norm": "post_feedforward_layernorm"},
}
"""By norm placement: the field of `LayerWeights` and the module on disk."""
_MIXTRAL_EXPERT = ("block_sparse_moe", "w1", "w3", "w2")
_EXPERT = ("mlp", "gate_proj", "up_proj", "down_proj")

Shapes = dict[str, tuple[int, ...]]


def expected_shapes(config: ModelConfig) -> Shapes:
    """Every weight of the model and its shape, [out, in] for matrices."""
    hidden = config.hidden_size
    shapes: Shapes = {EMBEDDING: (config.vocab_size, hidden), FINAL_NORM: (hidden,)}
    if not config.tied_head:
        shapes[HEAD] = (config.vocab_size, hidden)
    for index in range(config.layers):
        parts = _attention(config) | (_experts(config) if has_experts(config, index) else _mlp(config))
        parts |= {f"{module}.weight": (hidden,) for module in NORMS[config.norm_placement].values()}
        shapes |= {layer_name(index, part): shape for part, shape in parts.items()}
    return shapes


def layer_name(index: int, part: str) -> str:
    """The full name of a tensor of one layer."""
    return f"{LAYER_PREFIX}{index}.{part}"


def has_experts(config: ModelConfig, index: int) -> bool:
    """Whether layer `index` has experts in place of a plain MLP."""
    return config.experts is not None and index not in config.experts.dense_layers


def router_name(config: ModelConfig) -> str:
    """The part name of a layer's router matrix."""
    return f"{_expert_modules(config)[0]}.gate.weight"


def expert_names(config: ModelConfig, expert: int) -> tuple[str, str, str]:
    """The part names of one expert's gate, up and down matrices."""
    block, *modules = _expert_modules(config)
    gate, up, down = (f"{block}.experts.{expert}.{module}.weight" for module in modules)
    return gate, up, down


def _expert_modules(config: ModelConfig) -> tuple[str, str, str, str]:
    return _MIXTRAL_EXPERT if config.architecture == "mixtral" else _EXPERT


def _attention(config: ModelConfig) -> Shapes:
    hidden = config.hidden_size
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    rows = {"q": queries, "k": keys, "v": keys}
    if config.architecture in FUSED:
        rows = {"qkv": queries + 2 * keys}
    shapes: Shapes = {f"self_attn.{name}_proj.weight": (count, hidden) for name, count in rows.items()}
    shapes["self_attn.o_proj.weight"] = (hidden, queries)
    if config.qkv_bias:
        shapes |= {f"self_attn.{name}_proj.bias": (count,) for name, count in rows.items()}
    if config.head_norm != "none":
        whole = config.head_norm == "all"
        shapes["self_attn.q_norm.weight"] = (queries if whole else config.head_size,)
        shapes["self_attn.k_norm.weight"] = (keys if whole else config.head_size,)
    return shapes


def _mlp(config: ModelConfig) -> Shapes:
    hidden, inner = config.hidden_size, config.intermediate_size
    rows = {"gate_up": 2 * inner} if config.architecture in FUSED else {"gate": inner, "up": inner}
    shapes: Shapes = {f"mlp.{name}_proj.weight": (count, hidden) for name, count in rows.items()}
    return shapes | {"mlp.down_proj.weight": (hidden, inner)}


def _experts(config: ModelConfig) -> Shapes:
    if config.experts is None:
        return {}
    hidden, inner = config.hidden_size, config.experts.intermediate_size
    shapes: Shapes = {router_name(config): (config.experts.count, hidden)}
    for expert in range(config.experts.count):
        gate, up, down = expert_names(config, expert)
        shapes |= {gate: (inner, hidden), up: (inner, hidden), down: (hidden, inner)}
    return shapes
