"""RMS norms agree with transformers' formulas, rounding included."""

import pytest
import torch

from pagefleet_engine.kernels import norm
from tests.pagefleet_engine.kernels.nearness import assert_near

pytestmark = pytest.mark.torch
EPS = 1e-5


def reference(hidden: torch.Tensor, weight: torch.Tensor, unit_offset: bool, round_first: bool) -> torch.Tensor:
    values = hidden.float()
    values = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + EPS)
    if unit_offset:
        return (values * (1.0 + weight.float())).to(hidden.dtype)
    if round_first:
        return weight * values.to(hidden.dtype)
    return (weight.float() * values).to(hidden.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), [(1, 576), (3, 96), (2, 4096)])
@pytest.mark.parametrize(("unit_offset", "round_first"), [(False, True), (True, True), (False, False)])
def test_a_strided_row_is_normed(
    device: str, dtype: torch.dtype, rows: int, width: int, unit_offset: bool, round_first: bool
) -> None:
    torch.manual_seed(rows)
    wide = torch.randn(rows, width + 16, device=device).to(dtype)
    weight = torch.randn(width, device=device).to(dtype)
    hidden = wide[:, :width]
    found = norm.rms_norm(hidden, weight, EPS, unit_offset=unit_offset, round_first=round_first)
    assert_near(found, reference(hidden, weight, unit_offset, round_first))


def test_a_norm_may_write_over_its_input(device: str) -> None:
    wide = torch.randn(4, 64, device=device)
    weight = torch.randn(32, device=device)
    wanted = reference(wide[:, 16:48].clone(), weight, False, True)
    untouched = wide.clone()
    norm.rms_norm(wide[:, 16:48], weight, EPS, out=wide[:, 16:48])
    assert_near(wide[:, 16:48], wanted)
    assert torch.equal(wide[:, :16], untouched[:, :16])
    assert torch.equal(wide[:, 48:], untouched[:, 48:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("delta_scale", [1.0, 0.22])
def test_the_residual_is_rounded_before_it_is_normed(device: str, dtype: torch.dtype, delta_scale: float) -> None:
    torch.manual_seed(7)
    delta, residual = (torch.randn(5, 320, device=device).to(dtype) for _ in range(2))
    weight = torch.randn(320, device=device).to(dtype)
    wanted = residual + delta * delta_scale
    found = norm.add_rms_norm(delta, residual, weight, EPS, delta_scale=delta_scale)
    assert_near(residual, wanted)
    assert_near(found, reference(residual, weight, False, True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("sandwiched", [False, True])
def test_what_comes_in_parts_is_summed_and_rounded_first(
    device: str, dtype: torch.dtype, parts: int, sandwiched: bool
) -> None:
    torch.manual_seed(parts)
    delta, whole = torch.randn(parts, 3, 200, device=device), torch.zeros(3, 200, device=device)
    for part in delta:
        whole += part
    residual, weight = torch.randn(3, 200, device=device).to(dtype), torch.randn(200, device=device).to(dtype)
    wanted_residual = residual.clone()

    def added(given: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
        if sandwiched:
            return norm.sandwich(given, weight, into, weight, EPS)
        return norm.add_rms_norm(given, into, weight, EPS, delta_scale=0.5)

    assert_near(added(delta, residual), added(whole.to(dtype), wanted_residual))
    assert_near(residual, wanted_residual)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("unit_offset", "round_first"), [(True, True), (False, False)])
def test_a_sandwich_norms_the_sublayers_output_too(
    device: str, dtype: torch.dtype, last: bool, unit_offset: bool, round_first: bool
) -> None:
    torch.manual_seed(8)
    delta, residual = (torch.randn(3, 200, device=device).to(dtype) for _ in range(2))
    post, following = (torch.randn(200, device=device).to(dtype) for _ in range(2))
    wanted = residual + reference(delta, post, unit_offset, round_first)
    found = norm.sandwich(
        delta, post, residual, None if last else following, EPS, unit_offset=unit_offset, round_first=round_first
    )
    assert_near(residual, wanted)
    assert_near(found, residual if last else reference(residual, following, unit_offset, round_first))


def test_no_rows_are_no_work(device: str) -> None:
    empty = torch.empty(0, 64, device=device)
    assert norm.rms_norm(empty, torch.ones(64, device=device), EPS).shape == (0, 64)
