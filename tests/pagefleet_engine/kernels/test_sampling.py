"""Drawn tokens follow the softmax, depend on seed, position and logits alone, and never come from NaNs."""

import math

import pytest
import torch

from pagefleet_engine.kernels.sampling import Cut, sample
from pagefleet_engine.runner.noise import uniform

pytestmark = pytest.mark.torch
_MASK = 0xFFFFFFFF


def gumbel(seed: int, position: int, vocab: int) -> torch.Tensor:
    """The documented noise, float64."""
    key = splitmix64(seed, position)
    bits = (torch.arange(vocab) * 0x9E3779B9 + (key & _MASK)) & _MASK
    bits = fold(fold(bits, 0xB7E15163) ^ (key >> 32), 0xBB67AE85) ^ (key & _MASK)
    values = ((bits + 0.5) * 2.0**-32).double().clamp(max=1 - 2.0**-24)
    return -(-(-values).log1p()).log()


def fold(bits: torch.Tensor, multiplier: int) -> torch.Tensor:
    """Int64 wraps, which leaves the product's 64 bits as they are."""
    product = bits * multiplier
    return ((product >> 32) ^ product) & _MASK


def splitmix64(seed: int, position: int) -> int:
    mask, gamma = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def mixed(value: int) -> int:
        value &= mask
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        return value ^ (value >> 31)

    return mixed(mixed((seed & mask) + gamma) + (position + 1) * gamma)


def draw(
    logits: torch.Tensor,
    temperature: float | list[float],
    seeds: list[int],
    positions: list[int],
    seats: list[int] | None = None,
    cut: Cut | None = None,
) -> list[int]:
    device = logits.device
    heat = [temperature] * len(logits) if isinstance(temperature, float) else temperature
    tokens = torch.full((len(logits),), 123456789, dtype=torch.int32, device=device)
    sample(
        logits,
        torch.tensor(heat, dtype=torch.float32, device=device),
        torch.tensor(seeds, dtype=torch.int64, device=device),
        torch.tensor(positions, dtype=torch.int32, device=device),
        tokens,
        seats=None if seats is None else torch.tensor(seats, dtype=torch.int32, device=device),
        cut=cut,
    )
    found: list[int] = tokens.tolist()
    return found


def test_the_noise_starts_from_the_cpu_samplers_number() -> None:
    assert splitmix64(-5, 17) >> 11 == uniform(-5, 17) * 2**53


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_token_is_the_largest_logit_plus_its_documented_noise(device: str, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    rows, vocab = 20, 5000
    logits = (torch.randn(rows, vocab, device=device) * 2).to(dtype)
    seeds = [0, -1, 2**63 - 1, -(2**63), *range(5, rows + 1)]
    positions = [0, 2**31 - 1, *range(2, rows)]
    heat = [0.3 + 0.1 * row for row in range(rows)]
    found = draw(logits, heat, seeds, positions)
    for row in range(rows):
        keys = logits[row].cpu().double() + heat[row] * gumbel(seeds[row], positions[row], vocab)
        assert float(keys.max() - keys[found[row]]) < 1e-4


def test_greedy_takes_the_lowest_of_the_likeliest(device: str) -> None:
    logits = torch.zeros(3, 9000, device=device)
    logits[0, [4097, 8191]] = 2.0
    logits[1, 8999] = 1.0
    assert draw(logits, [0.0, 9e-6, 0.0], [1, 2, 3], [0, 0, 0]) == [4097, 8999, 0]


def documented(logits: torch.Tensor, temperature: float, seeds: list[int], positions: list[int]) -> list[int]:
    """What the documented noise draws for each seed and position from one row; the interpreter is slow."""
    noise = torch.stack([gumbel(*place, len(logits)) for place in zip(seeds, positions, strict=True)])
    found: list[int] = (logits.cpu().double() + temperature * noise).argmax(-1).tolist()
    return found


def assert_draws_follow_the_softmax(found: list[int], logits: torch.Tensor, temperature: float) -> None:
    counts = torch.bincount(torch.tensor(found), minlength=len(logits)).double()
    wanted = (logits.cpu().double() / temperature).softmax(0) * len(found)
    assert chi_square(counts, wanted) < 22.5  # 6 degrees of freedom: passed by 999 of 1,000


SEVEN_LOGITS = torch.tensor([1.0, 0.5, 0.0, -1.0, 1.5, -2.0, 0.9])


def test_draws_follow_the_softmax_at_a_temperature() -> None:
    found = documented(SEVEN_LOGITS, 0.7, list(range(4096)), [row % 64 for row in range(4096)])
    assert_draws_follow_the_softmax(found, SEVEN_LOGITS, 0.7)


@pytest.mark.gpu
def test_the_kernels_draws_follow_the_softmax(device: str) -> None:
    rows = 100_000
    logits = SEVEN_LOGITS.to(device).expand(rows, 7)
    assert_draws_follow_the_softmax(draw(logits, 0.7, list(range(rows)), [3] * rows), SEVEN_LOGITS, 0.7)


def test_draws_at_neighbouring_positions_of_one_seed_are_independent() -> None:
    rows, vocab = 4096, 8
    found = torch.tensor(documented(torch.zeros(vocab), 1.0, [99] * rows, list(range(rows))))
    pairs = torch.bincount(found[:-1] * vocab + found[1:], minlength=vocab * vocab).double()
    assert chi_square(pairs, torch.full_like(pairs, (rows - 1) / vocab**2)) < 103  # 63 degrees: 999 of 1,000


def test_noise_is_standard_gumbel_over_many_tokens() -> None:
    noise = torch.cat([gumbel(seed, seed * 3, 20000) for seed in range(10)])
    assert abs(float(noise.mean()) - 0.577216) < 0.01
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.03
    deciles = torch.tensor([-math.log(-math.log(share / 10)) for share in range(1, 10)]).double()
    shares = (noise[:, None] < deciles).double().mean(0)
    assert float((shares - torch.arange(1, 10) / 10).abs().max()) < 0.004


def test_neighbouring_tokens_draw_independently() -> None:
    distances, rows, vocab = (1, 2, 8, 64, 89, 1024, 10946), 40, 20000
    noise = torch.stack([gumbel(seed, seed % 7, vocab) for seed in range(rows)])
    sixteenths = ((-(-noise).exp()).exp() * 16).long().clamp(max=15)
    for distance in distances:
        pairs = (sixteenths[:, :-distance] * 16 + sixteenths[:, distance:]).flatten().bincount(minlength=256).double()
        wanted = torch.full_like(pairs, rows * (vocab - distance) / 256)
        assert chi_square(pairs, wanted) < 347  # 255 degrees of freedom: passed by 9,999 of 10,000


def test_the_best_of_many_tokens_is_as_far_out_as_it_should_be_and_anywhere() -> None:
    rows, vocab = 1500, 4096
    best = torch.stack([torch.stack(gumbel(seed, 5, vocab).max(0)) for seed in range(rows)])
    shares = (-vocab * (-best[:, 0]).exp()).exp().mul(20).long().bincount(minlength=20).double()
    places = best[:, 1].long().div(vocab // 20 + 1, rounding_mode="floor").bincount(minlength=20).double()
    assert chi_square(shares, torch.full_like(shares, rows / 20)) < 43.8  # 19 degrees: 999 of 1,000
    assert chi_square(places, torch.full_like(places, rows / 20)) < 43.8


def chi_square(counts: torch.Tensor, wanted: torch.Tensor) -> float:
    return float(((counts - wanted) ** 2 / wanted).sum())


def test_a_row_draws_alike_in_any_batch_and_seat(device: str) -> None:
    torch.manual_seed(5)
    logits = torch.randn(17, 2500, device=device)
    seeds, positions = list(range(17)), list(range(100, 117))
    together = draw(logits, 1.0, seeds, positions)
    alone = [draw(logits[row : row + 1], 1.0, seeds[row : row + 1], positions[row : row + 1])[0] for row in range(17)]
    assert alone == together
    seats = list(reversed(range(17)))
    assert draw(logits, [1.0] * 17, seeds[::-1], positions, seats) == together


def test_the_token_may_be_in_a_chunk_without_the_highest_bound(device: str) -> None:
    rows = 128
    logits = torch.full((48,), -math.inf, dtype=torch.float64)
    logits[torch.tensor([5, 20, 40])] = torch.tensor([0.0, 2.0, 1.0]).double()
    noise = torch.stack([gumbel(seed, 3, 48) for seed in range(rows)])
    tokens = (logits + noise).argmax(-1)
    bounds = logits - (-(-noise).exp()).expm1().neg().log()
    assert int((bounds.argmax(-1) != tokens).sum()) > 5
    for cut in ((16, 1), (32, 1), (64, 1)):
        found = draw(logits.float().to(device).expand(rows, 48), 1.0, list(range(rows)), [3] * rows, cut=cut)
        assert found == tokens.tolist()


def test_of_equal_keys_the_lowest_token_is_drawn_however_a_row_is_cut(device: str) -> None:
    rows, vocab = 32, 70
    logits = torch.full((rows, vocab), 1e7, device=device)  # float32 has whole numbers alone here
    noise = torch.stack([gumbel(seed, 3, vocab) for seed in range(rows)])
    keys = noise.round()
    most = keys.max(-1, keepdim=True).values
    clear = ((noise - keys).abs() < 0.49).logical_or(keys < most - 1).all(-1)
    tied = (keys == most).sum(-1) > 1
    assert int((clear & tied).sum()) > 5
    for cut in ((16, 1), (64, 1), (128, 1)):
        found = torch.tensor(draw(logits, 1.0, list(range(rows)), [3] * rows, cut=cut))
        assert found[clear].tolist() == keys.argmax(-1)[clear].tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "row", [[math.nan, 1.0], [1.0, math.inf], [-math.inf, -math.inf], [math.nan, math.inf], [math.nan, -math.inf]]
)
def test_a_row_without_usable_logits_gives_the_vocabularys_size(
    device: str, temperature: float, row: list[float]
) -> None:
    assert draw(torch.tensor([row], device=device), temperature, [1], [0]) == [2]


@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1.0, 100.0])
def test_a_barred_token_is_never_drawn(device: str, temperature: float) -> None:
    logits = torch.full((64, 5), -math.inf, device=device)
    logits[:, 3] = -1e4
    assert draw(logits, temperature, list(range(64)), [0] * 64) == [3] * 64
