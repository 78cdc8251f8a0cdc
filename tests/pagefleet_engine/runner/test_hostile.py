"""Whatever one request asks for, the others of its step get what they would have got alone."""

import math
import random
from pathlib import Path

import pytest
import torch

from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.decoder import Decoder
from pagefleet_engine.models.source import resolve
from pagefleet_engine.runner import sampler
from pagefleet_engine.runner.sampler import Draw, choose
from pagefleet_engine.runner.torch_runner import TorchRunner
from pagefleet_engine.steps import MIN_TEMPERATURE, Sampling, SequenceResult, SequenceStep, StepPlan, execute
from tests.pagefleet_engine.runner import references
from tests.pagefleet_engine.tiny_model import write_tiny_model

pytestmark = pytest.mark.torch
VOCABULARY = 266
ROUNDS = 40
TEMPERATURES = (
    0.0, 1e-300, 1e-46, 1e-45, 1e-40, 1e-38, 1e-30, MIN_TEMPERATURE / 2, MIN_TEMPERATURE, 1e-3, 1.0, 2.0, 1e38, 1e300,
    math.inf, math.nan, -1.0,
)  # fmt: skip
TOP_PS = (1.0, 0.0, 1e-300, 1e-46, 0.5, 0.999999999, 1.5, math.nan, -1.0, math.inf)
TOP_KS = (None, 0, 1, 2, VOCABULARY - 1, VOCABULARY, VOCABULARY + 1, 2**31 - 1, 2**63)
BIASES = (-100.0, 100.0, 1e38, -1e38, 3e38, 1e300, math.inf, -math.inf, math.nan, 0, 7)
SEEDS = (0, -1, 2**63 - 1, -(2**63), 2**64 - 1, 2**200)
COUNTS = (None, 0, 1, 20, VOCABULARY, 10**9)


def hostile(dice: random.Random) -> Sampling:
    """What no client can be stopped from trying, and what none should get as far as here."""
    ids = (0, 1, VOCABULARY - 1, *(() if dice.random() < 0.8 else (VOCABULARY, -1, 2**63 - 1)))
    bias = tuple((dice.choice(ids), dice.choice(BIASES)) for _ in range(dice.choice((0, 0, 1, 3))))
    return Sampling(
        seed=dice.choice(SEEDS),
        temperature=dice.choice(TEMPERATURES),
        top_k=dice.choice(TOP_KS),
        top_p=dice.choice(TOP_PS),
        logit_bias=bias,
        top_logprobs=dice.choice(COUNTS),
    )


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-46, 1e-44, 1e-40, 1e-30, MIN_TEMPERATURE / 2])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_a_temperature_that_float32_cannot_hold_takes_the_likeliest_token(temperature: float, top_p: float) -> None:
    logits = torch.randn(50, 1000, generator=torch.Generator().manual_seed(0))
    expected = logits.argmax(-1).tolist()
    draw = Draw(Sampling(seed=1, temperature=temperature, top_p=top_p, top_logprobs=0), 5)
    assert [choice.token_id for choice in choose(logits, [draw] * 50)] == expected


@pytest.mark.parametrize("options", [{}, {"top_p": 0.5}, {"top_k": 3}])
def test_weights_that_are_no_numbers_give_no_token_and_spare_the_others(
    options: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled = sampler._scaled

    def spoiled(*arguments: object) -> torch.Tensor:
        result = scaled(*arguments)  # type: ignore[arg-type]
        result[0] = math.nan
        return result

    draws = [Draw(Sampling(seed=seed, top_logprobs=1, **options), 3) for seed in (1, 2)]  # type: ignore[arg-type]
    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(0))
    expected = choose(logits.clone(), draws)
    monkeypatch.setattr(sampler, "_scaled", spoiled)
    assert choose(logits, draws) == [(None, None), expected[1]]


def test_a_cut_that_keeps_everything_does_not_sort_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_draw_among", None)
    draws = [Draw(Sampling(seed=1, top_k=top_k, top_p=1.0), 3) for top_k in (40, 41, 2**31 - 1)]
    assert all(choice.token_id is not None for choice in choose(torch.randn(3, 40), draws))


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_any_sampling_gives_a_token_of_the_vocabulary_or_none_and_spares_the_others(seed: int) -> None:
    dice = random.Random(seed)
    logits = torch.randn(12, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 10
    places = [dice.randrange(-1, 10**6) for _ in range(12)]
    plain = [Sampling(seed=5, temperature=0.9), Sampling(seed=6, top_p=0.8, top_logprobs=2), Sampling(seed=7, top_k=9)]
    asked = [dice.choice(plain) if row % 3 == 0 else _possible(hostile(dice)) for row in range(12)]
    draws = [Draw(sampling, place) for sampling, place in zip(asked, places, strict=True)]
    together = choose(logits.clone(), draws)
    for row, (choice, draw) in enumerate(zip(together, draws, strict=True)):
        assert choice.token_id is None or 0 <= choice.token_id < VOCABULARY
        if row % 3 == 0:
            assert choice.token_id == choose(logits[row : row + 1].clone(), [draw])[0].token_id is not None


def _possible(sampling: Sampling) -> Sampling:
    """Without what the runner refuses before it draws."""
    bias = tuple((token_id, value) for token_id, value in sampling.logit_bias if 0 <= token_id < VOCABULARY)
    return Sampling(
        seed=sampling.seed, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p,
        logit_bias=bias, top_logprobs=sampling.top_logprobs,
    )  # fmt: skip


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> TorchRunner:
    folder: Path = write_tiny_model(tmp_path_factory.mktemp("tiny"), seed=8)
    files = resolve(f"file://{folder}")
    return TorchRunner(references.decoder(files, read_config(files)), num_blocks=64)


def step(
    sequence_id: int, token_ids: tuple[int, ...], sampling: Sampling, prompt_logprobs: int | None = None, **more: object
) -> SequenceStep:
    return SequenceStep(
        sequence_id=sequence_id, token_ids=token_ids, start=0, block_table=(2 * sequence_id, 2 * sequence_id + 1),
        sample=True, sampling=sampling, prompt_logprobs=prompt_logprobs, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_hostile_requests_of_a_step_leave_the_others_their_answers(runner: TorchRunner) -> None:
    dice = random.Random(3)
    tokens = (0, 1, 9, VOCABULARY - 1)
    for _ in range(ROUNDS):
        steps = []
        for number in range(9):
            prompt = tuple(dice.choice(tokens) for _ in range(dice.choice((1, 2, 17, 32))))
            if number % 3 == 0:
                steps.append(step(number, prompt, Sampling(seed=number, temperature=0.8), dice.choice((None, 1))))
                continue
            if dice.random() < 0.2:
                prompt = (*prompt[:-1], dice.choice((VOCABULARY, -1, 2**40)))
            scored = dice.choice(COUNTS)
            steps.append(step(number, prompt, hostile(dice), scored, next_prompt_token=dice.choice((None, 3, 999, -1))))
        results = execute(runner, StepPlan(tuple(steps)))
        assert [result.sequence_id for result in results] == list(range(9))
        for result in results:
            assert (result.token_id is None) == (result.failure is not None)
            assert result.token_id is None or 0 <= result.token_id < VOCABULARY
        for number in (0, 3, 6):
            assert_same(results[number], execute(runner, StepPlan((steps[number],)))[0])
    assert all(memory.isfinite().all() for memory in runner._decoder._memory)


def assert_same(result: SequenceResult, alone: SequenceResult) -> None:
    assert result.failure is None
    assert result.token_id == alone.token_id
    assert [entry.logprob for entry in result.prompt_logprobs] == pytest.approx(
        [entry.logprob for entry in alone.prompt_logprobs], abs=1e-4
    )


def test_prompt_logprobs_that_are_no_numbers_fail_their_sequence(runner: TorchRunner) -> None:
    decoder = runner._decoder
    assert isinstance(decoder, Decoder)
    head = decoder._head
    kept = head[5].clone()
    inside = SequenceStep(
        sequence_id=1, token_ids=(1, 2, 3), start=0, block_table=(2,), sample=False, sampling=Sampling(seed=0),
        prompt_logprobs=1, next_prompt_token=4,
    )  # fmt: skip
    with torch.inference_mode():
        head[5] = math.inf
    try:
        [result] = execute(runner, StepPlan((inside,)))
    finally:
        with torch.inference_mode():
            head[5] = kept
    assert result.failure == "the model's numbers for this sequence are not finite"
    assert execute(runner, StepPlan((inside,)))[0].failure is None


def test_a_runner_tells_its_progress_between_layers_and_pieces_of_a_prompt(runner: TorchRunner) -> None:
    told: list[None] = []
    execute(runner, StepPlan((step(1, (1, 2, 3), Sampling(seed=0), 1),)), lambda: told.append(None))
    assert len(told) == 2 * runner._decoder.config.layers + 2
