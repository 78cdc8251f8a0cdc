"""The GPU's runner gives what the CPU's gives: whole prompts, chunks, batches, every wish of a request."""

from collections.abc import Sequence

import pytest
import torch
from msgspec.structs import replace

from pagefleet_engine.core.run import make_first_tokens
from pagefleet_engine.models.adapter_weights import AdapterSource
from pagefleet_engine.models.adapters import join_adapters
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.decoder import Decoder
from pagefleet_engine.models.layers import read_layer, read_top
from pagefleet_engine.models.source import resolve
from pagefleet_engine.models.weights import Weights, open_weights
from pagefleet_engine.runner.cuda.decoder import CudaDecoder
from pagefleet_engine.runner.cuda.device import clear
from pagefleet_engine.runner.cuda.loading import placed
from pagefleet_engine.runner.cuda.runner import CudaRunner
from pagefleet_engine.runner.cuda.staging import StagedWeights
from pagefleet_engine.runner.torch_runner import TorchRunner
from pagefleet_engine.scheduler.admission import Capacity
from pagefleet_engine.steps import Runner, Sampling, SequenceStep, StepPlan, execute
from tests.pagefleet_engine.runner import step_driver
from tests.pagefleet_engine.tiny_model import TinyShape, write_tiny_model

pytestmark = pytest.mark.torch
BLOCKS, WINDOW, SEATS = 64, 128, 8
PROMPTS = [list(range(5, 5 + length)) for length in (1, 17, 33)]
FEW_TOKENS = tuple((token, 60.0 - token) for token in range(7, 12))
"""As a bias they alone are likely, so that an answer hangs on how often it has each of them."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelConfig, Weights]:
    folder = write_tiny_model(tmp_path_factory.mktemp("model"), TinyShape())
    files = resolve(f"file://{folder}")
    config = read_config(files)
    return config, open_weights(files, config)


def gpu_runner(
    model: tuple[ModelConfig, Weights], device: str, *, batch_invariant: bool = False,
    adapters: Sequence[AdapterSource] = (), dtype: torch.dtype = torch.float32,
) -> CudaRunner:  # fmt: skip
    config, source = model
    place = torch.device(device)
    weights = StagedWeights(source, place, dtype)
    joined = join_adapters(adapters, config, lambda low, *_: placed(low, place, dtype), place)
    layers = [read_layer(weights, config, index) for index in range(config.layers)]
    decoder = CudaDecoder(
        config, layers, read_top(weights, config), max_positions=WINDOW, max_decodes=SEATS,
        batch_invariant=batch_invariant, adapters=joined,
    )  # fmt: skip
    return CudaRunner(
        decoder, BLOCKS, max_num_seqs=SEATS, max_batch_tokens=WINDOW, max_blocks=WINDOW // 16 + 1,
        graphs=device == "cuda",
    )  # fmt: skip


def cpu_runner(model: tuple[ModelConfig, Weights], adapters: Sequence[AdapterSource] = ()) -> TorchRunner:
    config, weights = model
    decoder = Decoder(
        config, weights, dtype=torch.float32, device=torch.device("cpu"), max_positions=WINDOW, adapters=adapters
    )
    return TorchRunner(decoder, BLOCKS)


def answers(runner: Runner, sampling: Sampling, count: int = 3, *, interleaved: bool = False) -> list[list[int]]:
    batch = step_driver.sequences(PROMPTS, BLOCKS, count, [sampling] * len(PROMPTS))
    run = step_driver.run_interleaved if interleaved else step_driver.run_batched
    run(runner, batch, count)
    return [sequence.answer[:count] for sequence in batch]


@pytest.mark.parametrize("interleaved", [False, True], ids=["whole prompts", "chunks beside decodes"])
def test_greedy_answers_are_the_cpus(model: tuple[ModelConfig, Weights], device: str, interleaved: bool) -> None:
    greedy = Sampling(seed=0, temperature=0.0)
    ours = answers(gpu_runner(model, device), greedy, interleaved=interleaved)
    assert ours == answers(cpu_runner(model), greedy, interleaved=interleaved)


@pytest.mark.parametrize(
    "wish",
    [
        {"logit_bias": ((7, 50.0),)},
        {"barred_token_ids": (7,), "barred_before": 100, "logit_bias": ((7, 50.0), (9, 40.0))},
        {"barred_token_ids": (7,), "barred_before": 19, "logit_bias": ((7, 50.0), (9, 40.0))},
        {"repetition_penalty": 1.1, "logit_bias": FEW_TOKENS},
        {"frequency_penalty": 1.5, "logit_bias": FEW_TOKENS},
        {"presence_penalty": 1.5, "logit_bias": FEW_TOKENS},
    ],
    ids=["bias", "barred", "barred for two tokens", "repetition", "frequency", "presence"],
)
def test_greedy_answers_with_a_wish_are_the_cpus(
    model: tuple[ModelConfig, Weights], device: str, wish: dict[str, object]
) -> None:
    sampling = Sampling(seed=0, temperature=0.0, **wish)  # type: ignore[arg-type]  # a table of fields
    assert answers(gpu_runner(model, device), sampling, 6) == answers(cpu_runner(model), sampling, 6)


def test_asking_for_log_probabilities_or_for_cuts_that_keep_all_draws_the_same(
    model: tuple[ModelConfig, Weights], device: str
) -> None:
    plain = Sampling(seed=11, temperature=2.0)
    wanted = answers(gpu_runner(model, device), plain, 6)
    for wish in ({"top_logprobs": 0}, {"top_k": model[0].vocab_size}, {"logit_bias": ((7, 0.0),)}):
        assert answers(gpu_runner(model, device), replace(plain, **wish), 6) == wanted


def test_a_seat_has_the_whole_seed_of_its_request(model: tuple[ModelConfig, Weights], device: str) -> None:
    runner, seeds = gpu_runner(model, device), [5, (1 << 63) + 0x1_2345_6789, -3]
    wishes = [Sampling(seed=seed, temperature=0.5) for seed in seeds]
    step_driver.run_batched(runner, step_driver.sequences(PROMPTS, BLOCKS, 1, wishes), 1)
    held = runner._state.seeds[: len(seeds)].tolist()
    assert sorted(seed % (1 << 64) for seed in held) == sorted(seed % (1 << 64) for seed in seeds)


def test_log_probabilities_are_the_cpus(model: tuple[ModelConfig, Weights], device: str) -> None:
    sampling = Sampling(seed=0, temperature=0.0, top_logprobs=3)
    found = []
    for runner in (gpu_runner(model, device), cpu_runner(model)):
        batch = step_driver.sequences([PROMPTS[1]], BLOCKS, 2, [sampling])
        batch[0].prompt_logprobs = 2
        step_driver.run_batched(runner, batch, 2)
        found.append([(result.logprobs, result.prompt_logprobs) for result in batch[0].results])
    for (chosen, prompt), (other_chosen, other_prompt) in zip(*found, strict=True):
        for one, other in zip([chosen, *prompt], [other_chosen, *other_prompt], strict=True):
            assert one is not None and other is not None
            assert one.token_id == other.token_id
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
            assert [token for token, _ in one.top] == [token for token, _ in other.top]


def test_which_of_equal_tokens_are_told_does_not_depend_on_the_batch(
    model: tuple[ModelConfig, Weights], device: str
) -> None:
    runner = gpu_runner(model, device)
    logits = torch.arange(model[0].vocab_size, dtype=torch.float32, device=device) % 3

    def told(counts: Sequence[int], first_id: int) -> list[object]:
        wishes = [Sampling(seed=0, temperature=0.0, top_logprobs=count) for count in counts]
        batch = step_driver.sequences(PROMPTS[: len(counts)], BLOCKS, 1, wishes)
        for sequence in batch:
            sequence.sequence_id += first_id
        step_driver.run_batched(runner, batch, 1)
        return [sequence.results[0].logprobs for sequence in batch]

    runner._decoder.logits = lambda hidden, out: out.copy_(logits)  # type: ignore[method-assign]
    assert told([2, 20, 3], 0)[0] == told([2], 10)[0]


def test_a_drawn_answer_does_not_depend_on_its_batch(model: tuple[ModelConfig, Weights], device: str) -> None:
    sampling = Sampling(seed=11, temperature=0.9, top_p=0.9)
    runner = gpu_runner(model, device)
    together = answers(runner, sampling)
    for number, (prompt, expected) in enumerate(zip(PROMPTS, together, strict=True), start=len(PROMPTS)):
        alone = step_driver.sequences([prompt], BLOCKS, 3, [sampling], shuffle_seed=3)
        alone[0].sequence_id = number
        step_driver.run_batched(runner, alone, 3)
        assert alone[0].answer == expected


def test_a_token_that_is_still_on_the_device_continues_its_sequence(
    model: tuple[ModelConfig, Weights], device: str
) -> None:
    """Step N + 1 is launched before step N is read."""
    runner = gpu_runner(model, device)
    [sequence] = step_driver.sequences([PROMPTS[1]], BLOCKS, 4)
    pending = [runner.launch(StepPlan((sequence.step(),)))]
    start = len(PROMPTS[1])
    for position in range(start, start + 3):
        step = SequenceStep(
            sequence_id=0, token_ids=None, start=position, block_table=sequence.blocks, sample=True,
            sampling=step_driver.GREEDY,
        )  # fmt: skip
        pending.append(runner.launch(StepPlan((step,))))
    tokens = [step.results()[0].token_id for step in pending]
    [expected] = step_driver.sequences([PROMPTS[1]], BLOCKS, 4)
    step_driver.run_batched(cpu_runner(model), [expected], 4)
    assert tokens == expected.answer


def test_a_token_outside_the_vocabulary_fails_alone(model: tuple[ModelConfig, Weights], device: str) -> None:
    runner = gpu_runner(model, device)
    batch = step_driver.sequences([[10**6], PROMPTS[0]], BLOCKS, 2)
    plan = StepPlan(tuple(sequence.step() for sequence in batch))
    bad, good = execute(runner, plan)
    assert bad.failure is not None and "vocabulary" in bad.failure
    assert good.failure is None and good.token_id is not None


def test_whose_step_in_flight_was_refused_fails_in_the_next_one_too(
    model: tuple[ModelConfig, Weights], device: str
) -> None:
    runner = gpu_runner(model, device)
    batch = step_driver.sequences([[10**6], PROMPTS[1]], BLOCKS, 3)
    first = runner.launch(StepPlan(tuple(sequence.step() for sequence in batch)))
    following = [
        SequenceStep(
            sequence_id=sequence.sequence_id, token_ids=None, start=len(sequence.tokens), block_table=sequence.blocks,
            sample=True, sampling=step_driver.GREEDY,
        )
        for sequence in batch
    ]  # fmt: skip
    second = runner.launch(StepPlan(tuple(following)))
    for bad, good in (first.results(), second.results()):
        assert bad.failure is not None and "vocabulary" in bad.failure
        assert good.failure is None and good.token_id is not None


def test_a_fixed_order_of_sums_gives_the_same_answers(model: tuple[ModelConfig, Weights], device: str) -> None:
    greedy = Sampling(seed=0, temperature=0.0)
    runner = gpu_runner(model, device, batch_invariant=True)
    assert answers(runner, greedy) == answers(cpu_runner(model), greedy)


def test_a_request_after_the_first_tokens_is_sampled_by_its_own_wishes(
    model: tuple[ModelConfig, Weights], device: str
) -> None:
    """The runner's first tokens are for nobody: the first request must not be taken for their continuation."""
    sampling = Sampling(seed=77, temperature=3.0)
    fresh, warm = gpu_runner(model, device), gpu_runner(model, device)
    make_first_tokens(warm, Capacity(WINDOW, BLOCKS, model[0].vocab_size))
    assert answers(warm, sampling) == answers(fresh, sampling)


def test_a_step_for_nobody_writes_no_block_that_may_be_cached(model: tuple[ModelConfig, Weights], device: str) -> None:
    runner = gpu_runner(model, device)
    for layer in runner._decoder.memory:
        layer.zero_()  # it is not cleared when it is made, and a NaN would not equal itself
    answers(runner, Sampling(seed=0, temperature=0.0))
    memory = [layer[:BLOCKS].clone() for layer in runner._decoder.memory]
    with torch.inference_mode():
        clear(runner._inputs, BLOCKS, SEATS)
        runner._decode_step(SEATS)
    assert all(
        torch.equal(before, layer[:BLOCKS]) for before, layer in zip(memory, runner._decoder.memory, strict=True)
    )
