"""A core process without a model, for tests of the API process: it repeats the prompt, token by token.

Run as `python -m tests.pagefleet_engine.server.fake_core --socket PATH <launch flags>`. `FAKE_CORE` in the
environment is JSON with fields of `Script`.
"""

import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field

from pagefleet_api.launch import Launch
from pagefleet_api.start_phase import StartPhase
from pagefleet_engine.core.channel import ChannelClosed, CoreChannel
from pagefleet_engine.steps import TokenLogprobs
from pagefleet_engine.wire import Abort, CoreFailed, CoreReady, CoreStatus, StepReport, StepTimes, Submit, TokenEvent

BLOCK = 16


@dataclass(frozen=True)
class Script:
    """How the fake behaves: it loads until `hold` is set; `fail_at` and `die_at` are tokens of one answer."""

    step_s: float = 0.0
    hold: threading.Event | None = None
    refuse: str | None = None
    fail_at: int | None = None
    die_at: int | None = None
    max_model_len: int = 512
    device: str = "cpu"


@dataclass
class Sequence:
    submit: Submit
    tokens: list[int] = field(default_factory=list)


class FakeCore:
    """Seats in order of arrival; one token for each seat in each step."""

    def __init__(self, channel: CoreChannel, launch: Launch, script: Script) -> None:
        self.channel, self.launch, self.script = channel, launch, script
        self.sequences: dict[int, Sequence] = {}
        self.prompt_tokens = self.decoded_tokens = 0
        self.stepped_at_s = time.monotonic()

    def run(self) -> None:
        self.load()
        while True:
            for message in self.channel.receive(0.0 if self.sequences else 0.1):
                if isinstance(message, Submit):
                    self.sequences[message.request_id] = Sequence(message)
                elif isinstance(message, Abort):
                    for request_id in message.request_ids:
                        self.sequences.pop(request_id, None)
            self.step()

    def load(self) -> None:
        while self.script.hold is not None and not self.script.hold.is_set():
            self.channel.send(StepReport())
            time.sleep(0.05)
        if self.script.refuse is not None:
            self.channel.send(CoreFailed(self.script.refuse))
            raise SystemExit(1)
        self.channel.send(
            CoreReady(
                max_model_len=self.script.max_model_len,
                max_num_seqs=self.launch.max_num_seqs,
                block_size=BLOCK,
                num_blocks=self.launch.num_kv_blocks or 64,
                dtype="float32",
                device=self.script.device,
                memory_bytes={"weights": 1},
                startup_phase_s={StartPhase.WEIGHTS: 0.1},
            )
        )

    def step(self) -> None:
        seated = list(self.sequences.values())[: self.launch.max_num_seqs]
        if seated and self.script.step_s:
            time.sleep(self.script.step_s)
        if seated:
            self.stepped_at_s = time.monotonic()
        events = tuple(self.next_event(sequence) for sequence in seated)
        for event in events:
            if event.finish_reason is not None:
                del self.sequences[event.request_id]
        times = (StepTimes(0.0, self.script.step_s, len(seated)),) if seated else ()
        self.channel.send(StepReport(events=events, status=self.status(len(seated)), times=times))

    def status(self, seated: int) -> CoreStatus:
        waiting = max(len(self.sequences) - self.launch.max_num_seqs, 0)
        running = len(self.sequences) - waiting
        return CoreStatus(
            running=running,
            waiting=waiting,
            queued_prompt_tokens=0,
            blocks_used=running,
            blocks_cached=0,
            blocks_free=(self.launch.num_kv_blocks or 64) - running,
            blocks_leaked=0,
            prompt_tokens_computed_total=self.prompt_tokens,
            prompt_tokens_cached_total=0,
            prefix_queries_total=self.prompt_tokens,
            prefix_hits_total=0,
            preemptions_total=0,
            block_allocation_failures_total=0,
            prefill_tokens_total=self.prompt_tokens,
            decode_tokens_total=self.decoded_tokens,
            seconds_since_last_step=time.monotonic() - self.stepped_at_s,
        )

    def next_event(self, sequence: Sequence) -> TokenEvent:
        submit, made = sequence.submit, len(sequence.tokens)
        if made == 0:
            self.prompt_tokens += len(submit.prompt_token_ids)
        else:
            self.decoded_tokens += 1
        if self.script.die_at == made:
            os._exit(7)
        if self.script.fail_at == made:
            return TokenEvent(request_id=submit.request_id, finish_reason="error", error="injected fault")
        cached = 0 if made == 0 else None
        prompt = self.prompt_logprobs(submit) if made == 0 else ()
        if submit.max_tokens == 0:
            return TokenEvent(
                request_id=submit.request_id,
                finish_reason="length",
                cached_prompt_tokens=cached,
                prompt_logprobs=prompt,
            )
        token = submit.prompt_token_ids[made % len(submit.prompt_token_ids)]
        sequence.tokens.append(token)
        finish = None
        if token in submit.stop_token_ids:
            finish = "stop"
        elif made + 1 >= submit.max_tokens:
            finish = "length"
        asked = submit.sampling.top_logprobs
        return TokenEvent(
            request_id=submit.request_id,
            token_id=token,
            logprobs=None if asked is None else logprobs(token, asked),
            prompt_logprobs=prompt,
            finish_reason=finish,
            cached_prompt_tokens=cached,
        )

    def prompt_logprobs(self, submit: Submit) -> tuple[TokenLogprobs, ...]:
        if submit.prompt_logprobs is None:
            return ()
        return tuple(logprobs(token, submit.prompt_logprobs) for token in submit.prompt_token_ids[1:])


def logprobs(token: int, count: int) -> TokenLogprobs:
    """The chosen token and `count` likeliest ones, of which it is the first."""
    return TokenLogprobs(token, -0.5, tuple((token + rank, -0.5 - rank) for rank in range(count)))


def main() -> None:
    path = sys.argv[sys.argv.index("--socket") + 1]
    launch = Launch.parse(sys.argv[3:])
    try:
        FakeCore(CoreChannel.connect(path), launch, Script(**json.loads(os.environ.get("FAKE_CORE", "{}")))).run()
    except ChannelClosed:
        return


if __name__ == "__main__":
    main()
