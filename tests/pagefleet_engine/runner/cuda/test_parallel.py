"""Two real processes that share a tiny model give the single runner's tokens."""

import os
from collections.abc import Iterator, Sequence

import pytest
import torch.distributed

from pagefleet_api.launch import Adapter
from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.source import resolve
from pagefleet_engine.models.tensor_names import expected_shapes
from pagefleet_engine.runner.cuda.packing import SeatsExhausted
from pagefleet_engine.runner.cuda.parallel import Leader
from pagefleet_engine.runner.cuda.peers import Alone
from pagefleet_engine.runner.cuda.runner import CudaRunner
from pagefleet_engine.steps import Sampling, SequenceStep, StepPlan
from tests.pagefleet_engine.adapter_folders import write_adapter
from tests.pagefleet_engine.runner import step_driver
from tests.pagefleet_engine.runner.cuda.parallel_rank import (
    BLOCKS,
    RANK_MODULE,
    SHAPE,
    launch_of,
    runner_of,
    stand_in_for_a_rank,
)
from tests.pagefleet_engine.tiny_model import write_tiny_model

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="for Triton's interpreter; see the gpu test"),
]
PROMPTS = [list(range(5, 5 + length)) for length in (3, 17)]
COUNT = 2


@pytest.fixture(scope="module")
def host() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        stand_in_for_a_rank(patch)
        yield


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"file://{write_tiny_model(tmp_path_factory.mktemp('model'), SHAPE)}"


@pytest.fixture(scope="module")
def adapters(uri: str, tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    """One of matrices that are cut by outputs and by inputs, one of some."""
    shapes = expected_shapes(read_config(resolve(uri)))
    modules = {"one": ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj"), "two": ("k_proj", "down_proj")}
    folder = tmp_path_factory.mktemp("adapters")
    paths = [write_adapter(folder / name, shapes, cut, seed=len(name)) for name, cut in modules.items()]
    return [Adapter(path.name, str(path)) for path in paths]


@pytest.fixture(scope="module")
def pair(host: None, uri: str, adapters: list[Adapter]) -> Iterator[CudaRunner]:
    """The first rank's runner; the second rank follows in a process of its own."""
    launch = launch_of(uri, 2, adapters)
    leader = Leader(launch, module=RANK_MODULE, backend="gloo")
    try:
        yield runner_of(launch, leader)
    finally:
        leader.close()
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def single(host: None, uri: str, adapters: list[Adapter]) -> CudaRunner:
    return runner_of(launch_of(uri, 1, adapters), Alone())


def answers(
    runner: CudaRunner, sampling: Sampling, *, interleaved: bool = False, chosen: Sequence[int | None] = (None, None)
) -> list[list[int]]:
    everybody_leaves(runner)
    batch = step_driver.sequences(PROMPTS, BLOCKS, COUNT, [sampling] * len(PROMPTS))
    for sequence, adapter in zip(batch, chosen, strict=True):
        sequence.adapter = adapter
    run = step_driver.run_interleaved if interleaved else step_driver.run_batched
    run(runner, batch, COUNT)
    return [sequence.answer[:COUNT] for sequence in batch]


def everybody_leaves(runner: CudaRunner) -> None:
    [other] = step_driver.sequences([[5]], BLOCKS, 1)
    other.sequence_id = 99
    step_driver.advance(runner, [(other, None)])


@pytest.mark.parametrize(
    ("sampling", "interleaved"),
    [
        (Sampling(seed=0, temperature=0.0), False),
        (Sampling(seed=0, temperature=0.0), True),
        (Sampling(seed=7, temperature=0.8), True),
        (Sampling(seed=0, temperature=0.0, logit_bias=((7, 50.0),), repetition_penalty=5.0), False),
    ],
    ids=["prefill and decode", "chunks beside decodes", "drawn", "with wishes, sampled again"],
)
def test_two_ranks_give_the_single_runners_tokens(
    pair: CudaRunner, single: CudaRunner, sampling: Sampling, interleaved: bool
) -> None:
    assert answers(pair, sampling, interleaved=interleaved) == answers(single, sampling, interleaved=interleaved)


def test_two_ranks_give_the_single_runners_tokens_to_each_adapter(pair: CudaRunner, single: CudaRunner) -> None:
    found = answers(pair, step_driver.GREEDY, interleaved=True, chosen=(0, 1))
    assert found == answers(single, step_driver.GREEDY, interleaved=True, chosen=(0, 1))
    assert found != answers(single, step_driver.GREEDY, interleaved=True), "the adapters change too little to be seen"


def test_a_preempted_sequence_goes_on_with_the_same_tokens(pair: CudaRunner, single: CudaRunner) -> None:
    found = []
    for runner in (pair, single):
        everybody_leaves(runner)
        batch = step_driver.sequences(PROMPTS, BLOCKS, 6)
        step_driver.run_batched(runner, batch, 2)
        away, *stay = batch
        step_driver.advance(runner, [(sequence, None) for sequence in stay])
        away.computed, away.blocks = 0, (BLOCKS - 1,)
        step_driver.advance(runner, [(sequence, None) for sequence in batch])
        step_driver.run_batched(runner, batch, 1)
        found.append([sequence.answer for sequence in batch])
    assert found[0] == found[1]


def test_a_token_that_is_still_on_the_devices_continues_its_sequence(pair: CudaRunner, single: CudaRunner) -> None:
    found = []
    for runner in (pair, single):
        everybody_leaves(runner)
        [sequence] = step_driver.sequences([PROMPTS[1]], BLOCKS, 4)
        pending = [runner.launch(StepPlan((sequence.step(),)))]
        for position in range(len(PROMPTS[1]), len(PROMPTS[1]) + 3):
            step = SequenceStep(
                sequence_id=0, token_ids=None, start=position, block_table=sequence.blocks, sample=True,
                sampling=step_driver.GREEDY,
            )  # fmt: skip
            pending.append(runner.launch(StepPlan((step,))))
        found.append([step.results()[0].token_id for step in pending])
    assert found[0] == found[1]


def test_a_step_that_cannot_be_packed_leaves_the_ranks_together(pair: CudaRunner, single: CudaRunner) -> None:
    everybody_leaves(pair)
    too_many = step_driver.sequences([[5]] * 20, BLOCKS, 1)
    with pytest.raises(SeatsExhausted, match="more than 8 sequences"):
        pair.launch(StepPlan(tuple(sequence.step() for sequence in too_many)))
    greedy = Sampling(seed=0, temperature=0.0)
    assert answers(pair, greedy) == answers(single, greedy)
