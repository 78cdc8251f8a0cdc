"""What the ranks tell each other comes out as it went in."""

import numpy as np
import pytest

from pagefleet_engine.kernels.prepare import PackedCounts
from pagefleet_engine.runner.cuda.attention import DensePrompt
from pagefleet_engine.runner.cuda.chunks import ChunkPlan
from pagefleet_engine.runner.cuda.orders import Agreed, Capture, Failed, Message, StepOrder, Stop, decode, encode
from pagefleet_engine.runner.cuda.packing import Chunk

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("message", [Capture(), Stop(), Agreed(-5), Failed("impossible", "why")])
def test_messages_come_back_as_they_were(message: Message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize("decoding", [True, False])
def test_a_step_comes_back_as_it_was(decoding: bool) -> None:
    values, counts = np.arange(-3, 30, dtype=np.int32), PackedCounts(4, 2, 1, 0)
    plan = ChunkPlan(2, (Chunk(1, 16, 5),), (DensePrompt(7, 2, 512),), 3, scored=True)
    order = StepOrder(
        values, counts, 8 if decoding else None, None if decoding else plan, None if decoding else values[:7], False
    )
    back = decode(encode(order))
    assert isinstance(back, StepOrder)
    np.testing.assert_array_equal(back.values, values)
    assert (back.counts, back.graph_size, back.chunks, back.resampled) == (
        counts,
        order.graph_size,
        order.chunks,
        False,
    )
    assert isinstance(back.counts, PackedCounts) and (back.chunk_values is None) == decoding
    if back.chunk_values is not None:
        np.testing.assert_array_equal(back.chunk_values, values[:7])
