"""Adapters on the GPU's runner: each row of a mixed batch gets what the CPU's runner gives it, from graphs too."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from pagefleet_api.launch import Adapter, Launch
from pagefleet_engine.core_process import load_runner
from pagefleet_engine.kernels import gated_gemm
from pagefleet_engine.kernels.own_ranks import keep_own
from pagefleet_engine.models.adapter_files import read_adapters
from pagefleet_engine.models.adapter_weights import AdapterWeights
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.source import resolve
from pagefleet_engine.models.tensor_names import expected_shapes
from pagefleet_engine.models.weights import Weights, open_weights
from pagefleet_engine.runner.cuda import decoder
from pagefleet_engine.steps import Runner
from tests.pagefleet_engine.adapter_folders import write_adapter
from tests.pagefleet_engine.runner import step_driver
from tests.pagefleet_engine.runner.cuda.test_runner import BLOCKS, cpu_runner, gpu_runner
from tests.pagefleet_engine.tiny_model import TinyShape, write_tiny_model

pytestmark = pytest.mark.torch
PROMPTS = [list(range(5, 5 + length)) for length in (1, 17, 33, 20)]
CHOSEN = (None, 0, 1, 0)
ANSWER_TOKENS = 3
Adapted = tuple[tuple[ModelConfig, Weights], list[AdapterWeights]]


def folders(tmp_path: Path, config: ModelConfig) -> list[Adapter]:
    """One adapter of all matrices, and one of some with another rank."""
    shapes = expected_shapes(config)
    every = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    paths = [
        write_adapter(tmp_path / "every", shapes, every, rank=4, seed=1),
        write_adapter(tmp_path / "some", shapes, ("q_proj", "v_proj", "down_proj"), rank=9, seed=2, layers=[1]),
    ]
    return [Adapter(path.name, str(path)) for path in paths]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    folder: Path = write_tiny_model(tmp_path_factory.mktemp("model"), TinyShape())
    files = resolve(f"file://{folder}")
    config = read_config(files)
    adapters = [AdapterWeights(read, config) for read in read_adapters(folders(folder, config))]
    return (config, open_weights(files, config)), adapters


def answers(
    runner: Runner,
    *,
    interleaved: bool = False,
    tokens: int = ANSWER_TOKENS,
    first_id: int = 0,
    of: Sequence[int] = range(len(PROMPTS)),
) -> list[list[int]]:
    """Greedy answers of a batch whose requests have different adapters, or none; `of` are the places in `PROMPTS`."""
    batch = step_driver.sequences([PROMPTS[place] for place in of], BLOCKS, tokens)
    for sequence, place in zip(batch, of, strict=True):
        sequence.adapter, sequence.sequence_id = CHOSEN[place], first_id + place
    run = step_driver.run_interleaved if interleaved else step_driver.run_batched
    run(runner, batch, tokens)
    return [sequence.answer[:tokens] for sequence in batch]


@pytest.mark.parametrize("interleaved", [False, True], ids=["whole prompts", "chunks beside decodes"])
def test_a_mixed_batch_s_answers_are_the_cpus(adapted: Adapted, device: str, interleaved: bool) -> None:
    model, adapters = adapted
    ours = answers(gpu_runner(model, device, adapters=adapters), interleaved=interleaved)
    wanted = answers(cpu_runner(model, adapters), interleaved=interleaved)
    assert ours == wanted
    assert wanted != answers(cpu_runner(model)), "the adapters change too little for this test to see"


def test_ways_that_leave_no_room_after_a_product_are_not_taken(
    adapted: Adapted, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many rows a product adds to the residual, or holds the activation: what an adapter adds comes in between."""
    monkeypatch.setattr(decoder, "MANY_ROWS", 1)
    monkeypatch.setattr(gated_gemm, "pays", lambda hidden, weight: True)
    model, adapters = adapted
    assert answers(gpu_runner(model, device, adapters=adapters)) == answers(cpu_runner(model, adapters))


def test_adapters_count_as_weights_on_the_device(adapted: Adapted, device: str) -> None:
    model, adapters = adapted
    config = model[0]
    given, plain = (gpu_runner(model, device, adapters=each)._decoder.weight_bytes for each in (adapters, []))
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    least = 4 * config.layers * (config.hidden_size + queries + 2 * keys) * 4
    assert given - plain > least


def test_a_fixed_order_of_sums_gives_the_same_answers(adapted: Adapted, device: str) -> None:
    model, adapters = adapted
    runner = gpu_runner(model, device, adapters=adapters, batch_invariant=True)
    assert answers(runner) == answers(cpu_runner(model, adapters))


@pytest.mark.parametrize("ranks", [16, 48, 1040])
def test_a_row_keeps_its_own_ranks_and_numbers_that_are_none_go(device: str, ranks: int) -> None:
    inner = torch.randn(5, ranks, device=device)
    inner[:, 3] = torch.nan
    owners = torch.arange(ranks, dtype=torch.int32, device=device) % 4
    owners[-2:] = -2
    chosen = torch.tensor([0, -1, 3, 1, 2], dtype=torch.int32, device=device)
    wanted = torch.where(owners == chosen[:, None], inner, 0.0)
    keep_own(inner, owners, chosen)
    assert torch.equal(inner.nan_to_num(7.0), wanted.nan_to_num(7.0))
    assert inner[[0, 1, 3, 4]].isfinite().all()


needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture
def syncs_are_errors() -> Iterator[None]:
    """torch refuses what makes the host wait for the device."""
    yield
    torch.cuda.set_sync_debug_mode("default")


def captured(tmp_path: Path, *flags: str) -> tuple[Adapted, Runner]:
    """An engine's runner with all its graphs; from here on it must not make the host wait for the device."""
    folder = write_tiny_model(tmp_path / "model", TinyShape())
    files = resolve(f"file://{folder}")
    config = read_config(files)
    given = folders(tmp_path, config)
    words = ["--model", f"file://{folder}", "--device", "cuda", "--max-model-len", "256", "--max-num-seqs", "8"]
    words += [word for adapter in given for word in ("--adapter", f"{adapter.name}={adapter.path}")]
    runner = load_runner(Launch.parse([*words, "--num-kv-blocks", str(BLOCKS), *flags])).runner
    while runner.idle_work():
        pass
    torch.cuda.set_sync_debug_mode("error")
    adapters = [AdapterWeights(read, config) for read in read_adapters(given)]
    return ((config, open_weights(files, config)), adapters), runner


class TestGraphs:
    """With everything captured as in an engine that serves."""

    pytestmark = needs_gpu

    def test_a_mixed_batch_s_answers_are_the_cpus(self, tmp_path: Path, syncs_are_errors: None) -> None:
        (model, adapters), runner = captured(tmp_path, "--dtype", "float32")
        wanted = answers(cpu_runner(model, adapters))
        assert answers(runner) == wanted
        assert answers(runner, interleaved=True, first_id=100) == wanted

    def test_an_answer_is_the_same_alone_and_beside_other_adapters(
        self, tmp_path: Path, syncs_are_errors: None
    ) -> None:
        _, runner = captured(tmp_path, "--dtype", "bfloat16", "--batch-invariant")
        together = answers(runner, tokens=12)
        alone = [answers(runner, tokens=12, of=[place], first_id=100)[0] for place in range(len(PROMPTS))]
        assert alone == together
        assert len({tuple(answer) for answer in together}) == len(together)
