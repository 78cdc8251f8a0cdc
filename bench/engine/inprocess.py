"""The engine without its API process: the core's own loop, scheduler and runner, driven from memory."""

import gc
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.engine.results import WorkFailed
from bench.engine.workloads import Batch
from pagefleet_api.launch import Launch
from pagefleet_engine.core.channel import CoreChannel
from pagefleet_engine.core.run import LoadedRunner, make_first_tokens, serving_loop
from pagefleet_engine.core_process import load_runner
from pagefleet_engine.scheduler.admission import Capacity
from pagefleet_engine.steps import Sampling
from pagefleet_engine.wire import FromCore, StepReport, Submit, ToCore, TokenEvent

TEMPERATURE = 0.6
_IDLE_TURNS = 3
"""After the last answer: a step that was launched ahead is taken in outside the measured time."""


@dataclass(slots=True)
class Answer:
    """One request's tokens and when they came, in seconds since all requests were submitted."""

    token_ids: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    cached_prompt_tokens: int = 0


@dataclass(slots=True)
class Run:
    """All answers of a batch, in its order, and how long it took."""

    seconds: float
    answers: list[Answer]

    @property
    def tokens(self) -> int:
        """Generated tokens of all answers."""
        return sum(len(answer.token_ids) for answer in self.answers)

    @property
    def full_batch_step_s(self) -> float:
        """Seconds between tokens from the last answer's beginning to the first one's end; 0 without such a time."""
        begun_s = max(answer.times_s[0] for answer in self.answers)
        ended_s = min(answer.times_s[-1] for answer in self.answers)
        between = sum(begun_s < time_s <= ended_s for time_s in self.answers[-1].times_s)
        return (ended_s - begun_s) / between if between else 0.0

    @property
    def first_token_s(self) -> list[float]:
        """Seconds to each answer's first token."""
        return [answer.times_s[0] for answer in self.answers]


class LocalChannel(CoreChannel):
    """The loop's channel with nobody at the other end: requests are put in, news are kept with their time."""

    def __init__(self) -> None:
        self._inbox: list[ToCore] = []
        self.news: list[tuple[float, tuple[TokenEvent, ...]]] = []

    def put(self, messages: Sequence[ToCore]) -> None:
        """What the loop hears in its next turn."""
        self._inbox += messages

    def receive(self, timeout_s: float) -> list[ToCore]:
        """Everything that was put; never waits."""
        heard, self._inbox = self._inbox, []
        return heard

    def send(self, message: FromCore) -> None:
        """Keep the events."""
        if isinstance(message, StepReport) and message.events:
            self.news.append((time.perf_counter(), message.events))

    def close(self) -> None:
        """There is nothing to close."""


class FewerBlocks:
    """A runner that tells of fewer blocks than it has, for measuring a full cache without filling the GPU."""

    def __init__(self, runner: Any, num_blocks: int) -> None:
        self._runner = runner
        self.num_blocks = min(num_blocks, runner.num_blocks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


class Session:
    """One scheduler and loop over the loaded runner. Request ids never repeat, as a runner may know old ones."""

    def __init__(self, launch: Launch, loaded: LoadedRunner, request_ids: "itertools.count[int]") -> None:
        self._channel = LocalChannel()
        self._loop = serving_loop(self._channel, launch, loaded)
        self._ids = request_ids

    def generate(self, batch: Batch, temperature: float = TEMPERATURE) -> Run:
        """Answer all requests, submitted at once; end tokens end nothing. Raises WorkFailed when one fails."""
        answers = {next(self._ids): Answer() for _ in batch.prompts}
        submits = [
            Submit(
                request_id=request_id,
                prompt_token_ids=prompt,
                max_tokens=output,
                sampling=Sampling(seed=request_id, temperature=temperature),
            )
            for request_id, prompt, output in zip(answers, batch.prompts, batch.outputs, strict=True)
        ]
        open_ids, channel = set(answers), self._channel
        channel.news.clear()
        began_s = ended_s = time.perf_counter()
        channel.put(submits)
        while open_ids:
            self._loop.turn()
            for at_s, events in channel.news:
                for event in events:
                    _hear(answers[event.request_id], event, at_s - began_s)
                    if event.finish_reason is not None:
                        open_ids.discard(event.request_id)
                ended_s = at_s
            channel.news.clear()
        for _ in range(_IDLE_TURNS):
            self._loop.turn()
        run = Run(ended_s - began_s, list(answers.values()))
        if [len(answer.token_ids) for answer in run.answers] != batch.outputs:
            raise WorkFailed("answers have other lengths than asked for")
        return run


def _hear(answer: Answer, event: TokenEvent, since_s: float) -> None:
    if event.error is not None or event.finish_reason not in {None, "length"}:
        raise WorkFailed(f"a request ended with {event.finish_reason}: {event.error}")
    if event.cached_prompt_tokens is not None:
        answer.cached_prompt_tokens = event.cached_prompt_tokens
    if event.token_id is not None:
        answer.token_ids.append(event.token_id)
        answer.times_s.append(since_s)


class Engine:
    """A loaded model in this process, warmed up as the core process does it."""

    def __init__(self, launch: Launch) -> None:
        """Raises StartImpossible as the core does."""
        began_s = time.perf_counter()
        self.launch, self.loaded = launch, load_runner(launch)
        capacity = Capacity(self.loaded.max_model_len, self.loaded.runner.num_blocks, self.loaded.vocab_size)
        make_first_tokens(self.loaded.runner, capacity)
        self.load_s = time.perf_counter() - began_s
        """Seconds to load the model and to make first tokens, the import of torch included."""
        while self.loaded.runner.idle_work():
            pass  # what a server does before anybody asks, such as more CUDA graphs
        self.idle_work_s = time.perf_counter() - began_s - self.load_s
        self._ids = itertools.count(1)
        gc.collect()
        gc.freeze()

    @property
    def vocab_size(self) -> int:
        """Token ids of the model."""
        return self.loaded.vocab_size

    def session(self, launch: Launch | None = None, num_blocks: int | None = None) -> Session:
        """A scheduler with empty books, of this launch or another one for the same runner."""
        loaded = self.loaded
        if num_blocks is not None:
            loaded = loaded._replace(runner=FewerBlocks(loaded.runner, num_blocks))
        return Session(launch or self.launch, loaded, self._ids)
