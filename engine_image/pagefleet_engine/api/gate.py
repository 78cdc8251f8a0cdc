"""Who comes in: the pod's state, the queue's bound, and the count of what is open."""

import threading
from collections.abc import Callable, Sequence

from pagefleet_api.launch import Launch
from pagefleet_api.load import EngineState
from pagefleet_api.metrics import Engine
from pagefleet_api.sizing import blocks_for
from pagefleet_api.wording import counted
from pagefleet_engine.api import queueing
from pagefleet_engine.api.core_client import Clock, CoreClient
from pagefleet_engine.api.drain import DrainState, Intake
from pagefleet_engine.api.errors import Draining, EngineFailed, InvalidRequest, QueueFull, Starting
from pagefleet_engine.api.recorder import Recorder
from pagefleet_engine.api.turnover import Turnover

_RETRY_WHILE_STARTING_S = 5.0
_RETRY_ELSEWHERE_S = 1.0


class Claim:
    """Places of one request's sequences among the open ones."""

    def __init__(self, gate: "Gate", count: int) -> None:
        self._gate = gate
        self._left = count
        self._blocks_each = 0

    def size(self, prompt_tokens: Sequence[int]) -> None:
        """The lengths of the sequences' prompts, once, as soon as they are known.

        Raises `QueueFull` when as many others are in already as memory has seats for and may wait.
        """
        blocks = sum(blocks_for(tokens) for tokens in prompt_tokens)
        self._gate.check_sized(len(prompt_tokens), blocks)
        self._blocks_each = -(-blocks // len(prompt_tokens))
        self._gate.sized_sequences += self._left
        self._gate.sized_blocks += self._left * self._blocks_each

    def end_one(self) -> None:
        """One sequence has ended, however: its place is free again."""
        self._release(1)
        self._gate.note_end()

    def release_rest(self) -> None:
        """Give back what is left, of sequences that never began; again, nothing."""
        self._release(self._left)

    def _release(self, count: int) -> None:
        self._left -= count
        self._gate.open_sequences -= count
        if self._blocks_each:
            self._gate.sized_sequences -= count
            self._gate.sized_blocks -= count * self._blocks_each


class Gate:
    """Decides at once, from what is known here, whether a request comes in.

    `open_sequences` counts accepted and unfinished sequences (choices), also those that are still being
    tokenised; `sized_sequences` those whose prompts' `sized_blocks` are known.
    """

    def __init__(self, launch: Launch, core: CoreClient, recorder: Recorder, clock: Clock) -> None:
        self._launch = launch
        self._core = core
        self._recorder = recorder
        self._clock = clock
        self._turnover = Turnover()
        self._drain = DrainState()
        self._drain_changes = threading.Lock()
        self.loaded = False
        """The API process has the tokenizer."""
        self.open_sequences = self.sized_sequences = self.sized_blocks = 0

    @property
    def drain(self) -> DrainState:
        """How far the pod's end has come."""
        return self._drain

    def change_drain(self, change: Callable[[DrainState], DrainState | None]) -> bool:
        """Put `change`'s answer in the place of the drain's state; False, and nothing, for None.

        From any thread: a signal and `/drain` may come at the same moment.
        """
        with self._drain_changes:
            changed = change(self._drain)
            if changed is None:
                return False
            self._drain = changed
            return True

    @property
    def state(self) -> EngineState:
        """What `/load`, `/readyz` and the metrics say."""
        if self._core.failure is not None:
            return EngineState.FAILED
        if self._drain.draining:
            return EngineState.DRAINING
        return EngineState.READY if self.was_ready else EngineState.STARTING

    @property
    def was_ready(self) -> bool:
        """Whether everything is loaded and the core has made its first token."""
        return self.loaded and self._core.ready is not None

    @property
    def intake(self) -> Intake:
        """What happens to a request that arrives now."""
        return self._drain.intake(self._clock())

    @property
    def waiting(self) -> int:
        """Sequences that the scheduler left without a seat; the core's word may be a step old."""
        status = self._core.status
        return 0 if status is None else min(status.waiting, self.open_sequences)

    def check_open(self) -> None:
        """Raise while nothing is accepted: `EngineFailed`, `Draining`, `Starting`."""
        if self._core.failure is not None:
            raise EngineFailed(f"The engine failed: {self._core.failure}.", retry_after_s=_RETRY_WHILE_STARTING_S)
        if self.intake is Intake.REFUSE:
            raise Draining("This server is draining and takes no new requests.", retry_after_s=_RETRY_ELSEWHERE_S)
        if not self.was_ready:
            raise Starting("The model is not loaded yet.", retry_after_s=_RETRY_WHILE_STARTING_S)

    def admit(self, choices: int, prompts: int = 1) -> Claim:
        """Places for `choices` sequences of each prompt; raises what `check_open` does, `QueueFull`, `InvalidRequest`.

        `InvalidRequest` names the field that asks for more than can ever be held: `prompt` or `n`.
        """
        self.check_open()
        count = choices * prompts
        launch = self._launch
        most = launch.max_queued_requests + launch.max_num_seqs
        if count > most:
            raise InvalidRequest(
                f"The request asks for {counted(count, 'answer')} ({counted(prompts, 'prompt')}, {choices} to each); "
                f"this server holds at most {most} at a time.",
                param="prompt" if choices == 1 or prompts > most else "n",
            )
        room = self._room(self.sized_sequences, self.sized_blocks)
        if self.open_sequences and self.open_sequences + count > room:
            raise self._queue_full(room, count)
        self.open_sequences += count
        if self.open_sequences < room:
            self._turnover.room()
        return Claim(self, count)

    def check_sized(self, count: int, blocks: int) -> None:
        """Raise `QueueFull` when `count` sequences with prompts of `blocks` blocks are too many beside the others."""
        sequences = self.sized_sequences + count
        room = self._room(sequences, self.sized_blocks + blocks)
        if self.sized_sequences and sequences > room:
            raise self._queue_full(room, count)

    def note_end(self) -> None:
        """A sequence has ended: its end tells how fast places come free."""
        self._turnover.end(self._clock(), others_wait=self.waiting > 0)

    def _room(self, sized_sequences: int, sized_blocks: int) -> int:
        launch, status, ready = self._launch, self._core.status, self._core.ready
        blocks = 0 if ready is None else ready.num_blocks
        return queueing.capacity(
            max_num_seqs=launch.max_num_seqs,
            max_queued=launch.max_queued_requests,
            running=0 if status is None else status.running,
            waiting=0 if status is None else status.waiting,
            fitting=queueing.fitting_prompts(blocks, sized_sequences, sized_blocks),
        )

    def _queue_full(self, room: int, count: int) -> QueueFull:
        """The refusal of `count` sequences, with the time until places for them are likely."""
        now_s, usual_per_s = self._clock(), self._usual_ends_per_s()
        retry_s = self._turnover.come_back_s(count, now_s, usual_per_s, turn=self.open_sequences)
        return QueueFull(
            f"The queue is full: {self.open_sequences} requests are open and {room} may be.", retry_after_s=retry_s
        )

    def _usual_ends_per_s(self) -> float | None:
        """Ends per second if all that run took as long as those before; None before any."""
        status, mean_s = self._core.status, self._recorder.mean(Engine.REQUEST_INFERENCE)
        seats = 0 if status is None else status.running
        return None if not mean_s else (seats or self._launch.max_num_seqs) / mean_s
