"""What a step is computed from on the device."""

from typing import NamedTuple

import torch

from pagefleet_engine.runner.cuda.attention import AttentionStep


class StepRows(NamedTuple):
    """The rows of a step on the device, int32 [rows] each; a slot is a token's place in the KV memory.

    `adapters` are read where the decoder has adapters alone.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    adapters: torch.Tensor


class DeviceStep(NamedTuple):
    """One step's inputs on the device."""

    rows: StepRows
    attention: AttentionStep
