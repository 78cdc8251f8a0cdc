"""From a step plan to one int32 array for the device, and back from sampled tokens. Pure; numpy only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from pagefleet_api.sizing import BLOCK_TOKENS
from pagefleet_engine.models.packed import NO_ADAPTER
from pagefleet_engine.steps import SequenceStep

FROM_SEAT = -1
"""In place of a token: the newest one that the row's seat holds (`kernels.prepare`)."""
Ints = npt.NDArray[np.int32]
_LOW = 0xFFFFFFFF


DENSE_MIN_TOKENS, DENSE_STEP_TOKENS = 2048, 1024
Padded = Callable[[int], int | None]


class SeatsExhausted(Exception):
    """More sequences than seats."""


class UnknownSequence(Exception):
    """A step continues a sequence whose state is not on the device."""


@dataclass(slots=True)
class Seat:
    """One sequence's row in the device's tables, and how much of its block table the device knows.

    After another preemption it knows nothing of it.
    """

    index: int
    preemptions: int
    special: bool
    """Whether its request asks for more than a temperature."""
    blocks_told: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """A prompt's part in this step: `seat`, first position, tokens."""

    seat: int
    start: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Packed:
    """One step as the device gets it.

    `values` are the parts that `kernels.prepare.PackedCounts` names, in its order. Rows are the decodes, padded to
    `decode_rows`, then the chunks' tokens, then padding; `padding_rows` of them, at both places, are nobody's. `steps`
    is the plan's sequences in row order: decodes, the longest first, then chunks. `sampling` has one entry for each
    sequence that samples, `special` the places in it of those that ask for more than a temperature.
    """

    values: Ints
    rows: int
    padding_rows: int
    decodes: int
    decode_rows: int
    block_deltas: int
    parameter_deltas: int
    chunks: tuple[Chunk, ...]
    steps: tuple[SequenceStep, ...]
    sampling: tuple["SampledRow", ...]
    special: tuple[int, ...]


class SampledRow(msgspec.Struct, frozen=True):
    """Who samples from which row; `position` is the new token's."""

    step: SequenceStep
    row: int
    seat: int
    position: int


@dataclass(slots=True)
class Seats:
    """Who has which row of the device's tables. Everybody seated is in every plan, so who is not in one has left."""

    count: int
    max_blocks: int
    _of: dict[int, Seat] = field(default_factory=dict)
    _free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._free = list(range(self.count - 1, -1, -1))

    @property
    def nobody(self) -> int:
        """The row that padding uses."""
        return self.count

    def update(self, steps: Sequence[SequenceStep]) -> None:
        """Give back the seats of those who are not in `steps`, before the new ones take theirs."""
        for gone in self._of.keys() - {step.sequence_id for step in steps}:
            self._free.append(self._of.pop(gone).index)

    def of(self, step: SequenceStep) -> Seat | None:
        """The seat of a planned sequence, if it has one."""
        return self._of.get(step.sequence_id)

    def sit_down(self, step: SequenceStep) -> Seat:
        """A seat for a sequence that has none."""
        if step.token_ids is None:
            raise UnknownSequence(f"sequence {step.sequence_id} continues, but its newest token is not on the device")
        if not self._free:
            raise SeatsExhausted(f"more than {self.count} sequences in one step")
        seat = self._of[step.sequence_id] = Seat(self._free.pop(), step.preemptions, not step.sampling.plain)
        return seat

    def clear(self) -> None:
        """Nobody is known any more."""
        self.update(())


class Packer:
    """Makes `Packed` values; keeps `Seats` between steps."""

    def __init__(self, seats: Seats, dummy_block: int, *, adapted: bool = False) -> None:
        """With `adapted` each row's adapter is told too."""
        self._seats, self._dummy_slot, self._adapted = seats, dummy_block * BLOCK_TOKENS, adapted
        nobody = [0, 0, self._dummy_slot, NO_ADAPTER] if adapted else [0, 0, self._dummy_slot]
        self._filler = np.array(nobody, np.int32)[:, None]

    def pack(
        self, steps: Sequence[SequenceStep], pad_to: int | None = None, pad_rows: Padded = lambda rows: None
    ) -> Packed:
        """One step. `pad_to` is the number of decode rows to fill up to, None for no padding; `pad_rows` tells to
        how many rows in all a step is filled up at its end, None likewise."""
        self._seats.update(steps)
        decodes, prefills = list[SequenceStep](), list[SequenceStep]()
        for step in steps:
            (decodes if is_decode(step) else prefills).append(step)
        decodes.sort(key=_longest_first)
        prefills.sort(key=_dense_last)
        told = _Told(_Deltas(self._seats.max_blocks))
        padding = max((pad_to or 0) - len(decodes), 0)
        seats, decode_rows = self._decodes(decodes, padding, told)
        runs, chunks, row = [decode_rows], list[Chunk](), len(seats)
        for step in prefills:
            seat = self._take(step, told)
            runs.append(_chunk_rows(step, adapted=self._adapted))
            chunks.append(Chunk(seat.index, step.start, step.tokens))
            row += step.tokens
            if step.sample:
                told.sample(SampledRow(step, row - 1, seat.index, step.start + step.tokens), special=seat.special)
        filling = (pad_rows(row) or row) - row
        runs.append(self._filler.repeat(filling, 1))
        deltas, parameters = told.deltas, told.parameters
        values = np.concatenate([*_by_kind(runs), np.array(seats, np.int32), *deltas.arrays(), _flat(parameters)])
        return Packed(
            values=values, rows=row + filling, padding_rows=padding + filling,
            decodes=len(decodes), decode_rows=len(seats),
            block_deltas=deltas.count, parameter_deltas=len(parameters), chunks=tuple(chunks),
            steps=(*decodes, *prefills), sampling=tuple(told.sampling), special=tuple(told.special),
        )  # fmt: skip

    def _decodes(self, decodes: Sequence[SequenceStep], padding: int, told: "_Told") -> tuple[list[int], Ints]:
        """The seat of each decode row, and tokens, positions, slots and, where they are told, adapters of all."""
        tokens, positions, slots, seats = list[int](), list[int](), list[int](), list[int]()
        for row, step in enumerate(decodes):
            seat, start = self._take(step, told), step.start
            tokens.append(FROM_SEAT if step.token_ids is None else step.token_ids[0])
            positions.append(start)
            slots.append(step.block_table[start // BLOCK_TOKENS] * BLOCK_TOKENS + start % BLOCK_TOKENS)
            seats.append(seat.index)
            told.sample(SampledRow(step, row, seat.index, start + 1), special=seat.special)
        kinds = [tokens + [0] * padding, positions + [0] * padding, slots + [self._dummy_slot] * padding]
        if self._adapted:
            kinds.append([_adapter(step) for step in decodes] + [NO_ADAPTER] * padding)
        return seats + [self._seats.nobody] * padding, np.array(kinds, np.int32)

    def forget(self) -> None:
        """What the device knows is not known any more: the next step tells everything again."""
        self._seats.clear()

    def _take(self, step: SequenceStep, told: "_Told") -> Seat:
        seat = self._seats.of(step)
        if seat is None:
            seat = self._seats.sit_down(step)
            told.parameters.append((seat.index, *_parameters(step)))
        if seat.preemptions != step.preemptions:
            seat.preemptions, seat.blocks_told = step.preemptions, 0
        if seat.blocks_told != len(step.block_table):
            told.deltas.add(seat.index, seat.blocks_told, step.block_table)
            seat.blocks_told = len(step.block_table)
        return seat


class _Deltas:
    """Changes of the flat block tables: pairs of place and block."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks, self.count = max_blocks, 0
        self._runs: list[Ints] = []
        self._pairs: list[int] = []

    def add(self, seat: int, known: int, table: Sequence[int]) -> None:
        fresh = len(table) - known
        first = seat * self._max_blocks + known
        self.count += fresh
        if fresh == 1:
            self._pairs += (first, table[known])
        else:
            run = np.empty((fresh, 2), np.int32)
            run[:, 0] = np.arange(first, first + fresh)
            run[:, 1] = table[known:]
            self._runs.append(run.reshape(-1))

    def arrays(self) -> list[Ints]:
        return [*self._runs, np.array(self._pairs, np.int32)]


@dataclass(slots=True)
class _Told:
    """What a step tells beside its rows, as it is put together."""

    deltas: _Deltas
    parameters: list[tuple[int, int, int, int]] = field(default_factory=list)
    sampling: list[SampledRow] = field(default_factory=list)
    special: list[int] = field(default_factory=list)

    def sample(self, row: SampledRow, *, special: bool) -> None:
        if special:
            self.special.append(len(self.sampling))
        self.sampling.append(row)


def is_decode(step: SequenceStep) -> bool:
    """Whether the step is one token that samples: a row of the decode batch."""
    token_ids = step.token_ids
    return step.sample and step.prompt_logprobs is None and (token_ids is None or len(token_ids) == 1)


def is_dense(start: int, tokens: int) -> bool:
    """Whether a chunk is worth the dense kernel: it reads no earlier pages, is long, and of a length that others
    have too, as that kernel is set up for each length anew (75 ms on an H200)."""
    return start == 0 and tokens >= DENSE_MIN_TOKENS and tokens % DENSE_STEP_TOKENS == 0


def _longest_first(step: SequenceStep) -> int:
    """Order of decodes: what attends to most begins first, so that attention does not end with it alone."""
    return -step.start


def _dense_last(step: SequenceStep) -> tuple[bool, int]:
    """Order of chunks: those that may be dense last, equal lengths together, so that they form one batch."""
    return is_dense(step.start, step.tokens), step.tokens


def _chunk_rows(step: SequenceStep, *, adapted: bool) -> Ints:
    """Tokens, positions, slots and, if `adapted`, adapters of a chunk: [3 or 4, tokens]."""
    positions = np.arange(step.start, step.start + step.tokens, dtype=np.int32)
    blocks = np.array(step.block_table, np.int32)[positions // BLOCK_TOKENS]
    kinds = [np.array(step.token_ids, np.int32), positions, blocks * BLOCK_TOKENS + positions % BLOCK_TOKENS]
    if adapted:
        kinds.append(np.full(step.tokens, _adapter(step), np.int32))
    return np.stack(kinds)


def _adapter(step: SequenceStep) -> int:
    return NO_ADAPTER if step.adapter is None else step.adapter


def _by_kind(runs: Sequence[Ints]) -> list[Ints]:
    """All tokens, then all positions, then all slots, then all adapters where they are told."""
    return [np.concatenate([run[kind] for run in runs]) for kind in range(len(runs[0]))]


def _parameters(step: SequenceStep) -> tuple[int, int, int]:
    """Temperature's bits, the seed's low and high half, all as int32."""
    bits = int(np.float32(step.sampling.temperature).view(np.int32))
    seed = step.sampling.seed & ((1 << 64) - 1)
    low, high = np.array([seed & _LOW, seed >> 32], np.uint32).view(np.int32).tolist()
    return bits, low, high


def _flat(groups: Sequence[tuple[int, int, int, int]]) -> Ints:
    return np.array(groups, np.int32).reshape(-1)
