"""A core process without a model, for `bench.api`: every seated request gets one token a step, at a fixed pace.

Run by the API process as `python -m bench.api_core --socket PATH <launch flags>`; `BENCH_API_STEP_S` in the
environment is the length of a step. It learns of requests and ends as the real core does.
"""

import os
import sys
import time

from pagefleet_api.launch import Launch
from pagefleet_engine.core.channel import ChannelClosed, CoreChannel
from pagefleet_engine.wire import Abort, CoreReady, CoreStatus, StepReport, StepTimes, Submit, TokenEvent

STEP_ENV = "BENCH_API_STEP_S"
FIRST_TOKEN, TOKENS = 1000, 9000
NUM_BLOCKS = 100_000
IDLE_S = 0.25


class PacedCore:
    """Seats everybody at once; token ids walk through the vocabulary, so that texts differ."""

    def __init__(self, channel: CoreChannel, step_s: float) -> None:
        self._channel, self._step_s = channel, step_s
        self._left: dict[int, int] = {}
        self._made = 0

    def run(self) -> None:
        """Serve until the API process closes the socket."""
        due_s = time.monotonic()
        while True:
            for message in self._channel.receive(0.0 if self._left else IDLE_S):
                self._hear(message)
            if self._left:
                due_s = max(due_s + self._step_s, time.monotonic() - self._step_s)
                time.sleep(max(due_s - time.monotonic(), 0.0))
            self._channel.send(self._report())

    def _hear(self, message: Submit | Abort) -> None:
        if isinstance(message, Submit):
            self._left[message.request_id] = message.max_tokens
            self._channel.send(StepReport(events=(TokenEvent(request_id=message.request_id, cached_prompt_tokens=0),)))
        else:
            for request_id in message.request_ids:
                self._left.pop(request_id, None)

    def _report(self) -> StepReport:
        events = tuple(self._event(request_id) for request_id in list(self._left))
        times = (StepTimes(0.0, self._step_s, len(events)),) if events else ()
        return StepReport(events=events, status=_status(len(self._left)), times=times)

    def _event(self, request_id: int) -> TokenEvent:
        self._made += 1
        token_id = FIRST_TOKEN + self._made % TOKENS
        self._left[request_id] -= 1
        if self._left[request_id] > 0:
            return TokenEvent(request_id=request_id, token_id=token_id)
        del self._left[request_id]
        return TokenEvent(request_id=request_id, token_id=token_id, finish_reason="length")


def _status(running: int) -> CoreStatus:
    return CoreStatus(
        running=running,
        waiting=0,
        queued_prompt_tokens=0,
        blocks_used=0,
        blocks_cached=0,
        blocks_free=NUM_BLOCKS,
        blocks_leaked=0,
        prompt_tokens_computed_total=0,
        prompt_tokens_cached_total=0,
        prefix_queries_total=0,
        prefix_hits_total=0,
        preemptions_total=0,
        block_allocation_failures_total=0,
        prefill_tokens_total=0,
        decode_tokens_total=0,
        seconds_since_last_step=0.0,
    )


def main() -> None:
    """Connect, say ready, serve."""
    channel = CoreChannel.connect(sys.argv[sys.argv.index("--socket") + 1])
    launch = Launch.parse(sys.argv[3:])
    channel.send(
        CoreReady(
            max_model_len=32_768,
            max_num_seqs=launch.max_num_seqs,
            block_size=16,
            num_blocks=NUM_BLOCKS,
            dtype="bfloat16",
            device="cpu",
            memory_bytes={},
            startup_phase_s={},
        )
    )
    try:
        PacedCore(channel, float(os.environ[STEP_ENV])).run()
    except ChannelClosed:
        return


if __name__ == "__main__":
    main()
