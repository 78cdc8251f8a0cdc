"""A program: starts the engine of a tiny model for a card that is not there, and prints where its kernels came from.

`nowhere` as its argument bakes: tensors have no memory. `host` launches as on a card: tensors are somewhere, and what
chooses a kernel is read off them.
"""

import json
import sys

import torch

from pagefleet_api.launch import Launch
from pagefleet_engine.baking import known, rehearsal
from pagefleet_engine.baking.absent import NOWHERE
from pagefleet_engine.kernels import prefill_attention
from pagefleet_engine.kernels.baked import counted
from pagefleet_engine.models import config_json

TINY = {
    "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
}  # fmt: skip
LAUNCH = Launch(model="tiny", max_num_seqs=4, max_num_batched_tokens=64)


def main(place: str) -> None:
    card, config = known.card("H200"), config_json.from_json("tiny", TINY, {})
    device = torch.device("cpu") if place == "host" else NOWHERE
    # nothing is computed: tokens that were never drawn must be indices all the same
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    prefill_attention.device_capability = lambda device: card.capability
    with counted() as kernels:
        rehearsal.rehearse(LAUNCH, config, card, device)
    print(json.dumps(kernels.fields()))


if __name__ == "__main__":
    main(sys.argv[1])
