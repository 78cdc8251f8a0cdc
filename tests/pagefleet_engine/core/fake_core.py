"""A core process without a model: `python -m tests.pagefleet_engine.core.fake_core SOCKET BEHAVIOUR`."""

import gc
import sys
import time

from pagefleet_api.launch import Launch
from pagefleet_api.start_phase import StartPhase
from pagefleet_engine.core.run import LoadedRunner, StartImpossible, serve_core
from pagefleet_engine.steps import Progress, RunnerBroken, SequenceResult, StepPlan
from tests.pagefleet_engine.core.chain_runner import VOCAB_SIZE, ChainRunner

POISON_TOKEN = 666


class ScriptedRunner(ChainRunner):
    """Breaks for good when it meets `POISON_TOKEN`; with `mute` it gives no token at all.

    `paced` steps take as long as those of a model, so that a test can act in the middle of an answer.
    """

    def __init__(self, num_blocks: int, *, mute: bool, paced: bool) -> None:
        super().__init__(num_blocks)
        self._mute = mute
        self._step_s = 0.05 if paced else 0.0

    def compute(self, plan: StepPlan, progress: Progress) -> list[SequenceResult]:
        """Compute the step."""
        time.sleep(self._step_s)
        if any(POISON_TOKEN in (step.token_ids or ()) for step in plan.sequences):
            raise RunnerBroken(f"the GPU has gone; frozen: {gc.get_freeze_count() > 1000}")
        if self._mute:
            return [
                SequenceResult(sequence_id=step.sequence_id, token_id=None, failure="logits are not finite")
                for step in plan.sequences
            ]
        return super().compute(plan, progress)


def load(launch: Launch, behaviour: str) -> LoadedRunner:
    """What the entry point of the real engine injects."""
    if behaviour == "slow":
        time.sleep(0.4)
    if behaviour == "endless":
        time.sleep(60)
    if behaviour == "missing":
        raise FileNotFoundError("model file://nowhere was not found")
    if behaviour == "impossible":
        raise StartImpossible("--device cuda: there is no GPU")
    if behaviour == "speechless":
        raise KeyError
    num_blocks = launch.num_kv_blocks or 64
    return LoadedRunner(
        runner=ScriptedRunner(num_blocks, mute=behaviour == "mute", paced=behaviour == "paced"),
        max_model_len=launch.max_model_len or 512,
        dtype="float32",
        device="cpu",
        memory_bytes={"kv": 1024},
        phase_s={StartPhase.WEIGHTS: 0.1},
        vocab_size=VOCAB_SIZE,
    )


if __name__ == "__main__":
    _, socket_path, behaviour, *words = sys.argv
    serve_core(socket_path, Launch.parse(["--model", "pkg://none", *words]), lambda launch: load(launch, behaviour))
