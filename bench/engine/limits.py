"""What the machine allows: the least time of a step by the bytes that it must read and the products it must compute.

Pure. Weights and KV are read at the measured memory bandwidth, matrix products and attention run at the measured rate
of matrix products; both are of one H200 in bfloat16. A decode step reads its KV after the matrices, whose time is
that of their bytes or of their products, whichever is longer. The embedding's rows and the norms are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

ELEMENT_BYTES = 2
"""bfloat16."""


class Machine(NamedTuple):
    """Rates that were measured on one GPU, and its memory."""

    read_bytes_s: float
    flops_s: float
    memory_bytes: int


MACHINES = {"NVIDIA H200": Machine(4.24e12, 774e12, 143_771 << 20)}
"""By the name that the driver gives."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a dense decoder that decide about its speed."""

    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_size: int
    vocab_size: int
    tied_head: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Shape":
        """From config.json."""
        return cls(
            layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_size=config["head_dim"],
            vocab_size=config["vocab_size"],
            tied_head=config["tie_word_embeddings"],
        )

    @property
    def layer_weights(self) -> int:
        """Elements of all layers' matrices."""
        rows = 2 * (self.heads + self.kv_heads) * self.head_size + 3 * self.intermediate_size
        return self.layers * self.hidden_size * rows

    @property
    def head_weights(self) -> int:
        """Elements of the LM head, and of the embedding."""
        return self.vocab_size * self.hidden_size

    @property
    def read_weights(self) -> int:
        """Elements that every step reads."""
        return self.layer_weights + self.head_weights

    @property
    def weight_bytes(self) -> int:
        """Bytes of all matrices on the device."""
        return (self.read_weights + (0 if self.tied_head else self.head_weights)) * ELEMENT_BYTES

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values."""
        return 2 * self.kv_heads * self.head_size * self.layers * ELEMENT_BYTES


class Limits(NamedTuple):
    """The bounds of one model on one machine."""

    shape: Shape
    machine: Machine

    def decode_step_s(self, batch: int, context_tokens: float) -> float:
        """Least seconds of a step that computes one token for each of `batch` sequences.

        `context_tokens` is the sum of their contexts.
        """
        shape, machine = self
        matrices_s = max(
            shape.read_weights * ELEMENT_BYTES / machine.read_bytes_s, 2 * shape.read_weights * batch / machine.flops_s
        )
        return matrices_s + context_tokens * shape.kv_bytes_per_token / machine.read_bytes_s

    def prefill_s(self, lengths: Sequence[int]) -> float:
        """Least seconds to compute prompts of these lengths; causal attention, the head for nobody."""
        shape = self.shape
        attention = 2 * shape.heads * shape.head_size * shape.layers
        flops = sum(2 * shape.layer_weights * length + attention * length * (length + 1) for length in lengths)
        return flops / self.machine.flops_s

    def batch_s(self, lengths: Sequence[int], outputs: Sequence[int]) -> float:
        """Least seconds for these requests at once, all prompts first, then decode steps of who is still there."""
        total_s = self.prefill_s(lengths)
        for done in range(1, max(outputs)):
            contexts = [length + done for length, output in zip(lengths, outputs, strict=True) if output > done]
            total_s += self.decode_step_s(len(contexts), sum(contexts))
        return total_s

    def batch_tok_s(self, lengths: Sequence[int], outputs: Sequence[int]) -> float:
        """Most generated tokens a second for `batch_s`'s requests."""
        return sum(outputs) / self.batch_s(lengths, outputs)

    def kv_tokens(self, memory_share: float) -> int:
        """Most tokens whose keys and values fit beside the weights."""
        room = self.machine.memory_bytes * memory_share - self.shape.weight_bytes
        return int(room / self.shape.kv_bytes_per_token)


def limits_for(config: Mapping[str, Any] | None, gpu: str | None, gpus: int = 1) -> Limits | None:
    """The limits where they are known: a shape's on GPUs that were measured; several share all work evenly."""
    one = None if gpu is None else MACHINES.get(gpu)
    if config is None or one is None:
        return None
    return Limits(Shape.of(config), Machine(one.read_bytes_s * gpus, one.flops_s * gpus, one.memory_bytes * gpus))


def percent(value: float, limit: float | None, *, more_is_better: bool) -> float | None:
    """How near `value` is to `limit`: 100 is as good as it gets; None without a limit."""
    if not limit or not value:
        return None
    return round(100 * (value / limit if more_is_better else limit / value), 1)
