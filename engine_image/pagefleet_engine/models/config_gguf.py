"""From a GGUF file's metadata to a decoder's configuration; of GGUF this engine runs Llama."""

from pagefleet_engine.models.config import ModelConfig, uniform_attention
from pagefleet_engine.models.config_fields import Fields, checked, unique
from pagefleet_engine.models.config_rope import DEFAULT_THETA
from pagefleet_engine.models.gguf import Gguf
from pagefleet_engine.models.rope import DividedFrequencies, LinearScaling, Rope, RopeScaling

ARCHITECTURE = "llama"
GGUF_EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
ROPE_FREQUENCIES = "rope_freqs.weight"


def from_gguf(gguf: Gguf) -> ModelConfig:
    """From a GGUF file's metadata; the head is tied when the file has no `output.weight`."""
    fields = Fields(str(gguf.path), gguf.metadata)
    if fields.values.get("general.architecture") != ARCHITECTURE:
        raise fields.refusal("general.architecture", f"this engine runs {ARCHITECTURE!r}")
    for name in ("llama.expert_count", "llama.attention.sliding_window"):
        fields.only(name, 0)
    if "tokenizer.ggml.tokens" not in gguf.arrays:
        raise fields.refusal("tokenizer.ggml.tokens", "the file must carry its tokenizer")
    heads, hidden_size = fields.count("llama.attention.head_count"), fields.count("llama.embedding_length")
    head_size = fields.count("llama.attention.key_length", hidden_size // heads)
    fields.only("llama.rope.dimension_count", head_size)
    layers = fields.layers("llama.block_count")
    bos_ids = fields.token_ids("tokenizer.ggml.bos_token_id")
    return checked(
        fields.origin,
        ModelConfig(
            layers=layers,
            hidden_size=hidden_size,
            intermediate_size=fields.count("llama.feed_forward_length"),
            heads=heads,
            kv_heads=fields.count("llama.attention.head_count_kv", heads),
            head_size=head_size,
            vocab_size=gguf.arrays["tokenizer.ggml.tokens"].count,
            max_positions=fields.count("llama.context_length"),
            norm_eps=fields.number("llama.attention.layer_norm_rms_epsilon"),
            ropes=(Rope(fields.number("llama.rope.freq_base", DEFAULT_THETA), head_size, _scaling(fields, gguf)),),
            attention=uniform_attention(layers),
            query_scale=head_size**-0.5,
            tied_head="output.weight" not in gguf.tensors,
            bos_id=bos_ids[0] if bos_ids else None,
            eos_ids=unique(*(fields.token_ids(key) for key in GGUF_EOS_KEYS)),
        ),
    )


def _scaling(fields: Fields, gguf: Gguf) -> RopeScaling | None:
    if ROPE_FREQUENCIES in gguf.tensors:
        return DividedFrequencies(tuple(gguf.tensor(ROPE_FREQUENCIES).reshape(-1).tolist()))
    fields.only("llama.rope.scaling.type", "none", "linear")
    if fields.values.get("llama.rope.scaling.type") == "linear":
        return LinearScaling(fields.number("llama.rope.scaling.factor"))
    return None
