"""What must be known of a decoder that transformers computes: its sizes, by any of the names in use."""

from pagefleet_engine.models.config import ModelConfig, uniform_attention
from pagefleet_engine.models.config_fields import Fields, unique

MLP_GROWTH = 4
"""The inner size where none is given, in hidden sizes; it only weighs when a number format is measured."""


def foreign_config(fields: Fields, generated: Fields, architecture: str) -> ModelConfig:
    """Sizes and token ids; how it attends is seen when transformers has loaded it. Raises ModelUnsupported."""
    layers = fields.layers(fields.first("num_hidden_layers", "n_layer", "n_layers", "num_layers"))
    heads = fields.count(fields.first("num_attention_heads", "n_head", "n_heads", "num_heads"))
    hidden_size = fields.count(fields.first("hidden_size", "n_embd", "d_model"))
    head_size = fields.count("head_dim", max(hidden_size // heads, 1))
    inner = fields.first("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    positions = fields.first("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length")
    bos_ids = fields.token_ids("bos_token_id") or generated.token_ids("bos_token_id")
    return ModelConfig(
        layers=layers,
        hidden_size=hidden_size,
        intermediate_size=fields.count(inner, MLP_GROWTH * hidden_size),
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", heads),
        head_size=head_size,
        vocab_size=fields.count("vocab_size"),
        max_positions=fields.count(positions),
        norm_eps=1e-5,
        ropes=(),
        attention=uniform_attention(layers),
        query_scale=head_size**-0.5,
        tied_head=False,
        bos_id=bos_ids[0] if bos_ids else None,
        eos_ids=unique(generated.token_ids("eos_token_id"), fields.token_ids("eos_token_id")),
        weights_dtype=fields.values.get("dtype") or fields.values.get("torch_dtype"),
        architecture=architecture,
        foreign=True,
    )
