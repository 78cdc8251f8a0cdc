"""One step's work as flat arrays: all sequences' tokens in one row of tokens, decodes first."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
NO_ADAPTER = -1
"""In place of an adapter: the row is computed by the model itself."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences that compute one token each and are of like length, attended to together.

    Rows `first_row` .. `first_row + sequences - 1` of the step. `blocks` is [sequences, width]: the block
    tables, padded with each sequence's own last block. `context_lengths` is [sequences], the new token
    counted in, longest first.
    """

    first_row: int
    blocks: Ints
    context_lengths: Ints


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Rows `first_row` .. `first_row + tokens - 1`: one sequence's positions `start` and on."""

    first_row: int
    tokens: int
    start: int
    blocks: Ints


@dataclass(frozen=True, slots=True)
class PackedStep:
    """`token_ids`, `positions`, `slots` are [tokens]; a slot is a token's place in the KV memory.

    `order[i]` is the place in the plan of the i-th packed sequence, `last_rows[i]` its last token's row.
    `adapters` is [tokens]: each one's adapter, `NO_ADAPTER` for the model itself; None where all have none.
    """

    token_ids: Ints
    positions: Ints
    slots: Ints
    order: tuple[int, ...]
    last_rows: Ints
    decodes: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillChunk, ...]
    adapters: Ints | None = None
