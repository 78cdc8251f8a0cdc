"""The engine that computes nothing: its steps take a GPU's time, its tokens are the same every time."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pagefleet_api.launch import Launch
from pagefleet_engine.core import paced
from pagefleet_engine.core.paced import PacedRunner, made_up_token
from pagefleet_engine.core.run import StartImpossible
from pagefleet_engine.scheduler.admission import Capacity
from pagefleet_engine.scheduler.batching import Scheduler
from pagefleet_engine.steps import Sampling, SequenceStep, StepPlan, execute
from pagefleet_engine.wire import CoreFailed, CoreReady, StepReport
from tests.pagefleet_engine.core.api_side import ApiSide
from tests.pagefleet_engine.core.engine_rig import submit

LAUNCH = Launch(model="pkg://none", device="paced")


class Watch:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def a_runner(watch: Watch) -> PacedRunner:
    return PacedRunner(paced.read_costs(None), 64, 1000, watch.clock, watch.sleep)


def decode(sequence_id: int, start: int, token_ids: tuple[int, ...] | None = None) -> SequenceStep:
    return SequenceStep(
        sequence_id=sequence_id,
        token_ids=token_ids,
        start=start,
        block_table=(1,),
        sample=True,
        sampling=Sampling(seed=sequence_id),
    )


def test_steps_are_over_one_after_the_other_and_take_their_costs() -> None:
    watch = Watch()
    runner = a_runner(watch)
    plans = [StepPlan((decode(1, 9, (5,)),)), StepPlan((decode(1, 10),))]
    step_s = paced.read_costs(None).step_s(1, 10, 0)
    told: list[float] = []
    first, second = [runner.launch(plan) for plan in plans]
    for number, pending in enumerate((first, second), start=1):
        pending.results(lambda: told.append(watch.now_s))
        assert watch.now_s == pytest.approx(100 + number * step_s, rel=0.01)
    assert len(told) == 2
    assert not runner.idle_work()


def test_an_8b_model_on_an_h200_takes_about_the_time_that_it_takes_there() -> None:
    costs = paced.read_costs(None)
    assert costs.step_s(1, 1024, 0) == pytest.approx(0.0045, rel=0.1)
    assert costs.step_s(256, 256 * 1024, 0) == pytest.approx(0.0155, rel=0.1)
    assert 2048 * 4 / costs.step_s(2048 * 4, 0, 4 * 2048 * 1024) == pytest.approx(45_000, rel=0.05)


def test_a_long_step_shows_signs_of_life() -> None:
    watch = Watch()
    told: list[None] = []
    chunk = SequenceStep(
        sequence_id=1, token_ids=(1,) * 30_000, start=0, block_table=(1,), sample=False, sampling=Sampling(seed=0)
    )
    execute(a_runner(watch), StepPlan((chunk,)), lambda: told.append(None))
    assert len(told) >= 10


def test_tokens_depend_on_seed_and_position_alone_and_look_random() -> None:
    tokens = [made_up_token(Sampling(seed=7), position, 50_000) for position in range(200)]
    assert tokens == [made_up_token(Sampling(seed=7, temperature=0.0), position, 50_000) for position in range(200)]
    assert len(set(tokens)) > 190
    assert min(tokens) >= 0
    assert tokens != [made_up_token(Sampling(seed=8), position, 50_000) for position in range(200)]


def test_logprobs_are_there_when_they_are_asked_for() -> None:
    runner = a_runner(Watch())
    step = SequenceStep(
        sequence_id=1, token_ids=(1, 2, 3), start=0, block_table=(1,), sample=True,
        sampling=Sampling(seed=0, top_logprobs=1), prompt_logprobs=0, next_prompt_token=4,
    )  # fmt: skip
    [result] = execute(runner, StepPlan((step,)))
    assert result.logprobs is not None
    assert [entry.token_id for entry in result.prompt_logprobs] == [2, 3, 4]


def test_the_whole_engine_keeps_its_promises_with_it() -> None:
    watch = Watch()
    runner = a_runner(watch)
    scheduler = Scheduler(Capacity(512, 64, 1000), 8, 64)
    for number in range(20):
        scheduler.submit(submit(number, range(number + 1), 30))
    while (plan := scheduler.schedule()) is not None:
        scheduler.complete(plan, execute(runner, plan))
    events = scheduler.drain_events()
    assert sum(event.token_id is not None for event in events) == 600
    assert scheduler.check() == (0, ())


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "No such file"), ("{", "Invalid JSON"), ("{}", "name, source, fixed_s"), ('{"nmae": 1}', "nmae")],
)
def test_costs_that_cannot_be_read_are_refused_with_the_way_out(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "costs.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(StartImpossible, match="--paced-costs") as error:
        paced.read_costs(str(path))
    assert words in str(error.value)


def test_blocks_come_from_the_launch_or_the_costs(tmp_path: Path) -> None:
    costs = paced.read_costs(None).model_dump()
    own = tmp_path / "own.json"
    own.write_text(json.dumps({**costs, "num_kv_blocks": 7}))
    assert paced.load(LAUNCH, 99, 1000).runner.num_blocks == costs["num_kv_blocks"]
    launch = Launch(model="pkg://none", device="paced", paced_costs=str(own))
    assert paced.load(launch, 99, 1000).runner.num_blocks == 7
    launch = Launch(model="pkg://none", device="paced", paced_costs=str(own), num_kv_blocks=9)
    assert paced.load(launch, 99, 1000).runner.num_blocks == 9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model without weights, which a paced engine does not need."""
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 500,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "hidden_act": "silu",
        "rope_theta": 10000.0, "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("flags", [(), ("--max-model-len", "9999")])
def test_a_paced_core_process_serves_without_torch_or_says_what_is_wrong(folder: Path, flags: tuple[str, ...]) -> None:
    path = str(folder / "core.sock")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(1)
    listener.settimeout(20)
    words = ["--socket", path, "--model", f"file://{folder}", "--device", "paced", *flags]
    words += ["--scheduling-policy", "priority", "--max-num-seqs", "1"]
    code = "import sys; sys.modules['torch'] = None; from pagefleet_engine.core_process import main; main(sys.argv[1:])"
    process = subprocess.Popen([sys.executable, "-c", code, *words])
    api = ApiSide(listener.accept()[0])
    ready = next(message for message in api.messages() if not isinstance(message, StepReport))
    if flags:
        assert isinstance(ready, CoreFailed)
        assert "9999" in ready.message
        assert process.wait(10) == 1
    else:
        assert isinstance(ready, CoreReady)
        assert (ready.device, ready.max_model_len) == ("paced", 1024)
        api.say(submit(1, range(9), 5, priority=1), submit(2, range(9), 7))
        assert [event.token_id for event in api.until_end_of(2)][1:] == [
            made_up_token(Sampling(seed=0), position, 500) for position in range(9, 16)
        ]
        assert len(api.until_end_of(1)) == 6, "the first one's news came before the end of the better one"
        api.connection.close()
        assert process.wait(10) == 0
    listener.close()
