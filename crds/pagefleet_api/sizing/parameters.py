"""How many parameters a decoder has, from its config.json: for models whose tensors are not at hand. Pure.

Norms and biases are left out but for the two norms of each layer and the last: they are a ten-thousandth.
"""

from dataclasses import dataclass

from pagefleet_api.sizing.fields import Config, count, value, whole

TIED = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n_text", "smollm3", "gpt2", "falcon", "cohere",
                  "cohere2"})  # fmt: skip
"""Families whose head is the embedding when config.json does not say."""
_PLAIN_MLP = frozenset(
    {"gpt2", "gpt_neox", "gptj", "falcon", "phi", "opt", "mpt", "bloom", "starcoder2", "gpt_bigcode"}
)
"""Families without a gate: two matrices in place of three."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers in the embedding, in the head (0 when tied), and in all layers."""

    embedding: int
    head: int
    layers: int
    active_inner_size: int
    """Of the MLP or of all experts that one token goes through."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.head + self.layers


def count_parameters(text: Config, layers: int, hidden: int, heads: int, kv_heads: int, head_size: int) -> Parameters:
    """From config.json's text part. Raises ConfigUnusable."""
    embedding = count(text, "vocab_size", "padded_vocab_size") * hidden
    tied = value(text, "tie_word_embeddings")
    tied = text.get("model_type") in TIED if tied is None else bool(tied)
    inner = count(text, "intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim", default=4 * hidden)
    matrices = 2 if text.get("model_type") in _PLAIN_MLP else 3
    experts = whole(text, _first(text, "num_local_experts", "num_experts", "n_routed_experts"))
    dense = layers if experts == 0 else _dense_layers(text, layers)
    attention = _attention(text, hidden, heads, kv_heads, head_size)
    mlps = dense * matrices * hidden * inner
    active = inner if dense else 0
    if experts:
        of_one, shared = _expert_sizes(text, inner)
        mlps += (layers - dense) * (experts * hidden + 3 * hidden * (experts * of_one + shared))
        active = max(active, count(text, "num_experts_per_tok", "num_experts_per_token", default=1) * of_one + shared)
    norms = (2 * layers + 1) * hidden
    return Parameters(embedding, 0 if tied else embedding, layers * attention + mlps + norms, active)


def _attention(text: Config, hidden: int, heads: int, kv_heads: int, head_size: int) -> int:
    """Of one layer: queries, keys, values and output; with latent attention their low-rank parts."""
    if value(text, "kv_lora_rank") is None:
        return 2 * hidden * (heads + kv_heads) * head_size
    latent, rope = count(text, "kv_lora_rank"), whole(text, "qk_rope_head_dim")
    nope, of_value = count(text, "qk_nope_head_dim"), count(text, "v_head_dim")
    query_rank, query = whole(text, "q_lora_rank"), heads * (nope + rope)
    queries = query_rank * (hidden + query) if query_rank else hidden * query
    return queries + hidden * (latent + rope) + latent * heads * (nope + of_value) + heads * of_value * hidden


def _dense_layers(text: Config, layers: int) -> int:
    """Layers of a mixture of experts that have a plain MLP."""
    first = whole(text, "first_k_dense_replace")
    every = count(text, "moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step", default=1)
    listed = value(text, "mlp_only_layers") or []
    sparse_at = 0 if value(text, "moe_layer_freq") is not None else every - 1
    return sum(index < first or index in listed or index % every != sparse_at for index in range(layers))


def _expert_sizes(text: Config, inner: int) -> tuple[int, int]:
    """Inner sizes of one expert and of what all tokens share."""
    of_one = count(text, "moe_intermediate_size", "expert_ffn_hidden_size", default=inner)
    shared = whole(text, "shared_expert_intermediate_size") or whole(text, "n_shared_experts") * of_one
    return of_one, shared


def _first(text: Config, *names: str) -> str:
    return next((name for name in names if value(text, name) is not None), names[0])
