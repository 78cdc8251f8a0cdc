"""On a GPU: kernels against torch over random shapes, at real sizes."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagefleet_engine.kernels import norm
from pagefleet_engine.kernels.activation import gated
from pagefleet_engine.kernels.sampling import sample
from tests.pagefleet_engine.kernels.nearness import assert_near
from tests.pagefleet_engine.kernels.test_norm import EPS, reference
from tests.pagefleet_engine.kernels.test_rope import Case, Shape

pytestmark = [pytest.mark.torch, pytest.mark.gpu]
many = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
DTYPES = st.sampled_from([torch.bfloat16, torch.float16, torch.float32])
WIDTHS = st.sampled_from([576, 896, 1024, 2048, 3072, 4096, 5120, 8192, 14336, 16384])


@many
@given(rows=st.integers(1, 700), width=WIDTHS, dtype=DTYPES, pdl=st.booleans())
def test_norms(device: str, rows: int, width: int, dtype: torch.dtype, pdl: bool) -> None:
    delta, residual = (torch.randn(rows, width, device=device).to(dtype) for _ in range(2))
    weight = torch.randn(width, device=device).to(dtype)
    wanted = residual + delta
    found = norm.add_rms_norm(delta, residual, weight, EPS, pdl=pdl)
    assert torch.equal(residual, wanted)
    assert_near(found, reference(wanted, weight, False, True), steps=4)


@many
@given(rows=st.integers(1, 700), inner=WIDTHS, dtype=DTYPES, pdl=st.booleans())
def test_gates(device: str, rows: int, inner: int, dtype: torch.dtype, pdl: bool) -> None:
    gate_up = torch.randn(rows, 2 * inner, device=device).to(dtype)
    wanted = torch.nn.functional.silu(gate_up[:, :inner]) * gate_up[:, inner:]
    assert_near(gated(gate_up, "silu", pdl=pdl), wanted, steps=4)


@many
@given(
    tokens=st.integers(1, 90),
    shape=st.builds(Shape, st.integers(1, 64), st.integers(1, 16), st.sampled_from([64, 96, 128, 256]), st.just(64)),
    norms=st.booleans(),
)
def test_rotations(device: str, tokens: int, shape: Shape, norms: bool) -> None:
    case = Case(shape, torch.bfloat16, device, tokens)
    queries, keys, values = case.parts()
    case.run(norms)
    assert_near(case.parts()[0], case.rotated(queries, case.query_norm if norms else None, False), steps=4)
    assert_near(case.cached(0), case.rotated(keys, case.key_norm if norms else None, False), steps=4)
    assert torch.equal(case.cached(1), values)


@many
@given(rows=st.integers(1, 300), vocab=st.integers(1, 200_000), seed=st.integers(-(2**63), 2**63 - 1))
def test_greedy_and_drawn_tokens(device: str, rows: int, vocab: int, seed: int) -> None:
    logits = torch.randn(rows, vocab, device=device).bfloat16()
    heat = torch.zeros(rows, device=device)
    seeds = torch.full((rows,), seed, device=device)
    positions = torch.arange(rows, device=device, dtype=torch.int32)
    greedy, drawn, alone = (torch.empty(rows, device=device, dtype=torch.int32) for _ in range(3))
    sample(logits, heat, seeds, positions, greedy)
    best = logits.amax(-1, keepdim=True)
    assert torch.equal(greedy.long(), (logits == best).int().argmax(-1))
    sample(logits, heat + 1, seeds, positions, drawn)
    sample(logits[-1:], heat[-1:] + 1, seeds[-1:], positions[-1:], alone)
    assert int(alone[0]) == int(drawn[-1]) < vocab
