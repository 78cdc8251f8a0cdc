"""The engine's start, and all that it prepares afterwards, on a GPU that is not there."""

import torch

from pagefleet_api.launch import Launch
from pagefleet_engine.baking.absent import NOWHERE, Card, standing_in
from pagefleet_engine.core.run import batched_tokens, make_first_tokens
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.errors import ModelBroken
from pagefleet_engine.models.tensor_names import Shapes, expected_shapes
from pagefleet_engine.runner import sizing
from pagefleet_engine.runner.cuda import loading
from pagefleet_engine.runner.cuda.peers import Alone
from pagefleet_engine.runner.cuda.shards import Shard
from pagefleet_engine.runner.loading import DTYPES, choose_dtype
from pagefleet_engine.scheduler.admission import Capacity


class FirstOfMany(Alone):
    """The first rank of a group of which nobody else is there."""

    def __init__(self, world: int) -> None:
        self.shard = Shard(0, world)


def rehearse(launch: Launch, config: ModelConfig, card: Card, device: torch.device = NOWHERE) -> None:
    """Start, produce a first token, and work while idle until nothing is left, with weights that nobody read.

    Every kernel that the engine would launch by then is compiled into Triton's cache, or found there.
    """
    dtype = DTYPES[choose_dtype(launch.dtype, "cuda", config)]
    window = sizing.window(launch, config)
    with standing_in(card, device):
        weights = Unread(expected_shapes(config), device, dtype)
        peers = FirstOfMany(launch.tensor_parallel_size)
        loaded = loading.load(launch, config, weights, dtype, window, batched_tokens(launch, "cuda"), peers)
        make_first_tokens(loaded.runner, Capacity(window, loaded.runner.num_blocks, config.vocab_size))
        while loaded.runner.idle_work():
            pass


class Unread:
    """Weights (`models.weights.Weights`) of a model's shapes, with whatever is in their memory."""

    def __init__(self, shapes: Shapes, device: torch.device, dtype: torch.dtype) -> None:
        self._shapes, self._device, self._dtype = shapes, device, dtype

    def tensor(self, name: str) -> torch.Tensor:
        """Raises ModelBroken for a name that the model lacks."""
        if name not in self._shapes:
            raise ModelBroken(f"the model's shape has no tensor {name}")
        return torch.empty(self._shapes[name], dtype=self._dtype, device=self._device)
