"""What fails on the way through the GPU's runner costs nobody an answer, whatever the device had been told by then."""

import random
import socket
from collections.abc import Iterator
from itertools import count

import pytest
import torch

from pagefleet_engine.core.channel import CoreChannel
from pagefleet_engine.core.loop import CoreLoop
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.weights import Weights
from pagefleet_engine.runner.cuda.runner import CudaRunner
from pagefleet_engine.scheduler.admission import Capacity
from pagefleet_engine.scheduler.batching import Scheduler
from pagefleet_engine.steps import Sampling
from pagefleet_engine.wire import Submit, TokenEvent
from tests.pagefleet_engine.core.api_side import ApiSide
from tests.pagefleet_engine.runner.cuda.test_runner import BLOCKS, FEW_TOKENS, SEATS, WINDOW, gpu_runner, model

__all__ = ["model"]
pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
ANSWER_TOKENS, BUDGET = 6, 24
QUIET_CALLS, FAULTS = 12, 5
"""So much works after a fault that the step it hit can be computed again; and a run has at least so many."""
WISHES = (
    Sampling(seed=0, temperature=0.0, logit_bias=FEW_TOKENS, frequency_penalty=1.5),
    Sampling(seed=1, temperature=0.0, logit_bias=FEW_TOKENS, frequency_penalty=0.7, repetition_penalty=1.1),
    Sampling(seed=2, temperature=0.8, logit_bias=FEW_TOKENS, top_k=30, presence_penalty=4.0, top_logprobs=2),
    Sampling(seed=3, temperature=0.9),
)
REQUESTS = [
    Submit(
        request_id=number, max_tokens=ANSWER_TOKENS, sampling=sampling, prompt_logprobs=0 if number == 3 else None,
        prompt_token_ids=tuple((number * 53 + index * index) % 250 for index in range(7 + 11 * number)),
    )
    for number, sampling in enumerate(WISHES)
]  # fmt: skip
Told = dict[int, tuple[list[int], int, str | None]]
"""By request: tokens, log-probabilities of the prompt, how it ended."""


def told(runner: CudaRunner) -> Told:
    """What the requests are told by a loop over this runner; they come one a turn."""
    core, api = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    scheduler = Scheduler(Capacity(WINDOW, BLOCKS, runner._decoder.config.vocab_size), SEATS, BUDGET)
    loop, side = CoreLoop(CoreChannel(core), scheduler, runner), ApiSide(api)
    waiting, events = list(REQUESTS), list[TokenEvent]()
    api.setblocking(False)
    while waiting or scheduler.has_work:
        if waiting:
            side.say(waiting.pop(0))
        loop.turn()
        events += news(side)
    assert scheduler.check() == (0, ())
    return {request.request_id: of_one(events, request.request_id) for request in REQUESTS}


def news(side: ApiSide) -> Iterator[TokenEvent]:
    """Events that were told up to now."""
    try:
        while True:
            yield from getattr(side.hear(), "events", ())
    except BlockingIOError:
        return


def of_one(events: list[TokenEvent], number: int) -> tuple[list[int], int, str | None]:
    """One request's part of them."""
    own = [event for event in events if event.request_id == number]
    tokens = [event.token_id for event in own if event.token_id is not None]
    return tokens, sum(len(event.prompt_logprobs) for event in own), own[-1].finish_reason


@pytest.mark.parametrize("seed", range(3))
def test_memory_that_is_gone_for_a_moment_anywhere_changes_no_answer(
    model: tuple[ModelConfig, Weights],
    device: str,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    wanted = told(gpu_runner(model, device))
    assert all(end == "length" and len(tokens) == ANSWER_TOKENS for tokens, _, end in wanted.values())
    runner, dice, calls, faults = gpu_runner(model, device), random.Random(seed), count(), [-QUIET_CALLS]

    def may_fail(owner: object, name: str) -> None:
        works = getattr(owner, name)

        def method(*given: object, **named: object) -> object:
            call, before = next(calls), dice.random() < 0.5
            fails = dice.random() < 0.3 and call > faults[-1] + QUIET_CALLS
            found = None if fails and before else works(*given, **named)
            if fails:
                faults.append(call)
                raise torch.OutOfMemoryError("no memory")
            return found

        monkeypatch.setattr(owner, name, method)

    for owner, name in (
        (runner._uploads, "send"), (runner._packer, "pack"), (runner._decoder, "forward"),
        (runner._special, "sample"), (runner._readings, "start"),
    ):  # fmt: skip
        may_fail(owner, name)
    assert told(runner) == wanted
    assert len(faults) > FAULTS


def test_who_needs_more_memory_than_there_is_fails_alone(
    model: tuple[ModelConfig, Weights],
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = told(gpu_runner(model, device))
    runner = gpu_runner(model, device)
    score = runner._special.score_prompts

    def no_room(*given: object) -> None:
        score(*given)  # type: ignore[arg-type]  # as it was called
        if any(step.prompt_logprobs is not None for step in given[0].steps):  # type: ignore[attr-defined]
            runner._special._counts.fill_(9)  # what was kept of the others may be anything now
            raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(runner._special, "score_prompts", no_room)
    found = told(runner)
    assert found.pop(3) == ([], 0, "error")
    del wanted[3]
    assert found == wanted
