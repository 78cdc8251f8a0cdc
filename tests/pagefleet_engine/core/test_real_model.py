"""Scheduler and torch together: answers depend on neither the pool's size nor the company."""

from pathlib import Path

import pytest

from pagefleet_api.launch import Launch
from pagefleet_engine.core.run import LoadedRunner
from pagefleet_engine.scheduler.admission import Capacity
from pagefleet_engine.scheduler.batching import Scheduler
from pagefleet_engine.steps import Sampling, execute
from pagefleet_engine.wire import Submit, TokenEvent
from tests.pagefleet_engine.tiny_model import write_tiny_model

pytestmark = pytest.mark.torch

ANSWER_TOKENS = 40
"""With a prompt of any of the lengths, over the edges of two or three blocks."""


def requests() -> list[Submit]:
    """Eight prompts of mixed length, greedy and random, some with log-probabilities of the prompt."""
    return [
        Submit(
            request_id=number,
            prompt_token_ids=tuple((number * 53 + index * index) % 250 for index in range(5 + 9 * number)),
            max_tokens=ANSWER_TOKENS,
            sampling=Sampling(seed=number, temperature=float(number % 2), top_logprobs=0),
            prompt_logprobs=0 if number % 3 == 0 else None,
        )
        for number in range(8)
    ]


def run(loaded: LoadedRunner, submits: list[Submit], max_num_batched_tokens: int) -> tuple[list[TokenEvent], int]:
    scheduler = Scheduler(
        Capacity(loaded.max_model_len, loaded.runner.num_blocks, loaded.vocab_size), 8, max_num_batched_tokens
    )
    for submit in submits:
        scheduler.submit(submit)
    while (plan := scheduler.schedule()) is not None:
        scheduler.complete(plan, execute(loaded.runner, plan))
    assert scheduler.check() == (0, ())
    return list(scheduler.drain_events()), scheduler.snapshot().preemptions_total


def tokens_of(events: list[TokenEvent], number: int) -> list[int | None]:
    return [event.token_id for event in events if event.request_id == number and event.token_id is not None]


def scores_of(events: list[TokenEvent], number: int) -> list[float]:
    return [
        entry.logprob
        for event in events
        if event.request_id == number
        for entry in (*event.prompt_logprobs, *((event.logprobs,) if event.logprobs else ()))
    ]


def load(folder: Path, num_blocks: int) -> LoadedRunner:
    from pagefleet_engine.runner import loading

    words = ["--model", f"file://{folder}", "--dtype", "float32", "--device", "cpu"]
    return loading.load(Launch.parse([*words, "--num-kv-blocks", str(num_blocks)]))


def test_a_first_prompt_and_those_that_find_it_in_the_cache_get_the_same_answer(tmp_path: Path) -> None:
    loaded = load(write_tiny_model(tmp_path / "model"), 40)
    scheduler = Scheduler(Capacity(loaded.max_model_len, loaded.runner.num_blocks, loaded.vocab_size), 8, 512)
    prompt = tuple((index * index) % 250 for index in range(300))
    for number in range(5):
        sampling = Sampling(seed=0, temperature=0.0, top_logprobs=0)
        scheduler.submit(Submit(request_id=number, prompt_token_ids=prompt, max_tokens=100, sampling=sampling))
        while (plan := scheduler.schedule()) is not None:
            scheduler.complete(plan, execute(loaded.runner, plan))
    events = list(scheduler.drain_events())
    cached = [event.cached_prompt_tokens for event in events if event.cached_prompt_tokens is not None]
    assert cached == [0, 288, 288, 288, 288]
    for number in range(1, 5):
        assert tokens_of(events, number) == tokens_of(events, 0)
        assert scores_of(events, number)[:10] == pytest.approx(scores_of(events, 0)[:10], abs=5e-4)
    assert len(tokens_of(events, 0)) == 100


def test_answers_and_logprobs_in_a_pool_that_preempts_are_those_of_each_request_alone(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    ample = load(folder, 200)
    crowded, preemptions = run(load(folder, 14), requests(), 32)
    assert preemptions > 0
    for request in requests():
        alone, _ = run(ample, [request], 512)
        number = request.request_id
        assert tokens_of(crowded, number) == tokens_of(alone, number)
        assert len(tokens_of(alone, number)) == ANSWER_TOKENS
        assert scores_of(crowded, number) == pytest.approx(scores_of(alone, number), abs=5e-4)
        scored = 0 if request.prompt_logprobs is None else len(request.prompt_token_ids) - 1
        assert len(scores_of(crowded, number)) == ANSWER_TOKENS + scored
