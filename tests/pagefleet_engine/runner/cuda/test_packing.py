"""What the device is told of a step: rows in order, deltas only, padding that harms nobody."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from pagefleet_engine.runner.cuda.packing import FROM_SEAT, Packed, Packer, Seats, SeatsExhausted, UnknownSequence
from pagefleet_engine.steps import Sampling, SequenceStep

GREEDY = Sampling(seed=(1 << 63) + 5, temperature=0.5)
MAX_BLOCKS, DUMMY = 10, 99


def step(
    key: int,
    tokens: Sequence[int] | None,
    start: int,
    blocks: Sequence[int],
    *,
    sample: bool = True,
    preemptions: int = 0,
) -> SequenceStep:
    return SequenceStep(
        sequence_id=key, token_ids=None if tokens is None else tuple(tokens), start=start, block_table=blocks,
        sample=sample, sampling=GREEDY, preemptions=preemptions,
    )  # fmt: skip


def packer(seats: int = 3) -> Packer:
    return Packer(Seats(seats, MAX_BLOCKS), DUMMY)


def parts(packed: Packed) -> dict[str, list[int]]:
    rows, decodes = packed.rows, packed.decode_rows
    sizes = (rows, rows, rows, decodes, 2 * packed.block_deltas, 4 * packed.parameter_deltas)
    ends = np.cumsum(sizes)
    names = ("tokens", "positions", "slots", "seats", "blocks", "parameters")
    assert ends[-1] == packed.values.size
    return {name: packed.values[end - size : end].tolist() for name, size, end in zip(names, sizes, ends, strict=True)}


def test_decodes_come_first_then_padding_then_chunks() -> None:
    packed = packer().pack([step(1, [7, 8, 9], 16, [4, 5]), step(2, [6], 3, [2])], pad_to=2)
    told = parts(packed)
    assert told["tokens"] == [6, 0, 7, 8, 9]
    assert packed.padding_rows == 1
    assert told["positions"] == [3, 0, 16, 17, 18]
    assert told["slots"] == [2 * 16 + 3, DUMMY * 16, 5 * 16, 5 * 16 + 1, 5 * 16 + 2]
    assert told["seats"] == [0, 3]
    assert [(row.step.sequence_id, row.row, row.position) for row in packed.sampling] == [(2, 0, 4), (1, 4, 19)]


def test_padding_at_the_end_is_nobodys_too() -> None:
    packed = packer().pack([step(1, [7, 8, 9], 16, [4, 5]), step(2, [6], 3, [2])], pad_rows=lambda rows: 16)
    assert parts(packed)["slots"][4:] == [DUMMY * 16] * 12
    assert (packed.rows, packed.padding_rows) == (16, 12)


def test_the_decode_that_attends_to_most_is_the_first_row() -> None:
    packed = packer().pack([step(1, [7], 3, [4]), step(2, [8], 17, [5, 6]), step(3, [9], 4, [7])], pad_to=4)
    assert parts(packed)["positions"] == [17, 4, 3, 0]
    assert [row.step.sequence_id for row in packed.sampling] == [2, 3, 1]
    assert [each.sequence_id for each in packed.steps] == [2, 3, 1]


def test_who_asks_for_more_than_a_temperature_is_named() -> None:
    wishes: dict[int, dict[str, Any]] = {
        1: {},
        2: {"top_k": 5},
        3: {"temperature": 0.0, "top_k": 5},
        4: {"top_logprobs": 0},
    }
    steps = [
        msgspec.structs.replace(step(key, [key], key, [key]), sampling=Sampling(seed=0, **wish))
        for key, wish in wishes.items()
    ]
    long_prompt = msgspec.structs.replace(step(5, [1, 2], 0, [5]), sampling=Sampling(seed=0, min_p=0.1))
    inside = msgspec.structs.replace(long_prompt, sequence_id=6, sample=False)
    packed = packer(6).pack([*steps, inside, long_prompt])
    assert [packed.sampling[place].step.sequence_id for place in packed.special] == [4, 2, 5]


def test_a_chunk_inside_a_prompt_samples_nothing() -> None:
    packed = packer().pack([step(1, [7], 0, [4], sample=False), step(2, [6, 6], 0, [5], sample=False)])
    assert packed.sampling == () and packed.decodes == 0 and len(packed.chunks) == 2


def test_a_seated_sequence_tells_only_its_new_blocks() -> None:
    packs = packer()
    packs.pack([step(1, [7] * 17, 0, [4, 5])])
    again = packs.pack([step(1, None, 17, [4, 5])])
    assert (again.block_deltas, again.parameter_deltas) == (0, 0)
    assert parts(again)["tokens"] == [FROM_SEAT]
    grown = packs.pack([step(1, None, 32, [4, 5, 8])])
    assert parts(grown)["blocks"] == [0 * MAX_BLOCKS + 2, 8]


def test_after_a_preemption_the_whole_table_is_told_again() -> None:
    packs = packer()
    packs.pack([step(1, [7] * 17, 0, [4, 5])])
    again = packs.pack([step(1, [7] * 2, 16, [4, 6], preemptions=1)])
    assert parts(again)["blocks"] == [0, 4, 1, 6]


def test_who_is_not_planned_gives_the_seat_to_the_next() -> None:
    packs = packer(seats=1)
    packs.pack([step(1, [7], 0, [4])])
    packed = packs.pack([step(2, [8], 0, [5])])
    assert parts(packed)["seats"] == [0]
    bits = int(np.float32(0.5).view(np.int32))
    assert parts(packed)["parameters"] == [0, bits, 5, -(1 << 31)]


def test_more_sequences_than_seats_are_refused() -> None:
    with pytest.raises(SeatsExhausted):
        packer(seats=1).pack([step(1, [7], 0, [4]), step(2, [7], 0, [5])])


def test_a_sequence_whose_token_is_nowhere_is_refused() -> None:
    packs = packer()
    packs.pack([step(1, [7], 0, [4])])
    packs.forget()
    with pytest.raises(UnknownSequence):
        packs.pack([step(1, None, 1, [4])])
