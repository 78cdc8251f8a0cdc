"""Weights that nobody trained: a model's shape is enough to measure speed (`--load-format dummy`)."""

import hashlib
from collections.abc import Mapping

import torch

from pagefleet_engine.models.errors import ModelBroken

STANDARD_DEVIATION = 0.02
_SEED_BYTES = 7


class RandomWeights:
    """A `weights.Weights`: matrices and biases normal around 0, norms 1, made on the device when asked for.

    A tensor depends on its name, its shape, `seed`, number format and kind of device alone, not on which others were
    asked for; so a second reader gets the same model. `shapes` is `tensor_names.expected_shapes`.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], *, device: torch.device, dtype: torch.dtype, seed: int = 0
    ) -> None:
        self._shapes, self._device, self._dtype, self._seed = shapes, device, dtype, seed

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor of a Hugging Face name, on the device. Raises ModelBroken for a name that the model lacks."""
        if name not in self._shapes:
            raise ModelBroken(f"the model's shape has no tensor {name}")
        values = torch.empty(self._shapes[name], dtype=self._dtype, device=self._device)
        if name.endswith("norm.weight"):
            return values.fill_(1.0)
        generator = torch.Generator(self._device).manual_seed(_seed(self._seed, name))
        return values.normal_(0.0, STANDARD_DEVIATION, generator=generator)


def _seed(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=_SEED_BYTES).digest()
    return int.from_bytes(digest, "big")
