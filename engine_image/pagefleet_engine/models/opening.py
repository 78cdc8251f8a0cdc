"""The decoder in plain torch that a configuration asks for: ours, or transformers' behind our pages."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from pagefleet_engine.models.adapter_weights import AdapterSource
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.decoder import Decoder
from pagefleet_engine.models.errors import ModelUnsupported
from pagefleet_engine.models.families import KNOWN
from pagefleet_engine.models.paged import PagedDecoder
from pagefleet_engine.models.source import ModelFiles
from pagefleet_engine.models.weights import Weights

if TYPE_CHECKING:
    from pagefleet_engine.models.foreign_model import ForeignModel


def open_decoder(
    files: ModelFiles,
    config: ModelConfig,
    weights: Weights,
    *,
    dtype: torch.dtype,
    device: torch.device,
    max_positions: int,
    adapters: Sequence[AdapterSource] = (),
) -> PagedDecoder:
    """The decoder with its weights read; its own `config` says how it attends. Raises ModelError."""
    if not config.foreign:
        return Decoder(config, weights, dtype=dtype, device=device, max_positions=max_positions, adapters=adapters)
    from pagefleet_engine.models.foreign import ForeignDecoder

    return ForeignDecoder(open_foreign(files, config, dtype=dtype, device=device))


def open_foreign(files: ModelFiles, config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> "ForeignModel":
    """A model that transformers computes, on its device. Raises ModelError, also where transformers is missing."""
    try:
        from pagefleet_engine.models.foreign_model import ForeignModel  # an optional package is needed there alone
    except ImportError as error:
        raise ModelUnsupported(
            f"{files.path}: model_type is {config.architecture!r}; this engine runs {KNOWN}, and others where the "
            f"Python package transformers is installed: {error}"
        ) from error
    return ForeignModel(config, files.path, dtype=dtype, device=device)
