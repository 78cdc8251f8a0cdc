"""Products that come in parts: the layers around them add the parts up. torch stands in for the kernel."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pagefleet_engine.kernels import activation, early_gemm, gated_gemm
from pagefleet_engine.kernels.activation import Activation
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.weights import Weights
from tests.pagefleet_engine.runner import step_driver
from tests.pagefleet_engine.runner.cuda import test_families_numerics as numerics
from tests.pagefleet_engine.runner.cuda.test_runner import BLOCKS, PROMPTS, cpu_runner, gpu_runner, model
from tests.pagefleet_engine.runner.family_models import FAMILIES, write

__all__ = ["model"]

pytestmark = pytest.mark.torch
PARTS = 3


def in_parts(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As `early_gemm.partial_product`."""
    columns = torch.arange(hidden.shape[1], device=hidden.device) * PARTS // hidden.shape[1]
    shares = [hidden.float() * (columns == part) for part in range(PARTS)]
    return torch.stack([share @ weight.float().T for share in shares])


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each product that came in parts: all that may."""
    counts: list[int] = []

    def product(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        counts.append(len(hidden))
        return in_parts(hidden, weight)

    monkeypatch.setattr(early_gemm, "pays", lambda rows, weight: 0 < rows <= early_gemm.MAX_ROWS)
    monkeypatch.setattr(early_gemm, "partial_product", product)
    return counts


@pytest.mark.parametrize("interleaved", [False, True], ids=["whole prompts", "chunks beside decodes"])
def test_answers_and_scores_are_the_cpus(
    model: tuple[ModelConfig, Weights], device: str, computed: list[int], interleaved: bool
) -> None:
    found = []
    for runner in (gpu_runner(model, device), cpu_runner(model)):
        batch = step_driver.sequences(PROMPTS, BLOCKS, 3)
        for sequence in batch:
            sequence.prompt_logprobs = 0
        run = step_driver.run_interleaved if interleaved else step_driver.run_batched
        run(runner, batch, 3)
        scores = [entry.logprob for each in batch for result in each.results for entry in result.prompt_logprobs]
        found.append(([sequence.answer[:3] for sequence in batch], scores))
    assert len(computed) > 5
    assert found[0][0] == found[1][0]
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-3)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "family", ["qwen2", "gemma2", "gemma3", "granite", "phi4, partial longrope", "qwen3 moe, some dense layers"]
)
def test_families_answer_as_transformers_does(
    request: pytest.FixtureRequest, tmp_path: Path, device: str, computed: list[int], family: str
) -> None:
    saved = (tmp_path, write(FAMILIES[family], tmp_path))
    numerics.test_prompts_in_chunks_and_answers_are_those_of_transformers(request, saved, device)
    assert len(computed) > 20


@pytest.mark.parametrize(
    "large",
    [lambda outputs, width: outputs < width, lambda outputs, width: outputs != width],
    ids=["down alone", "all but the output"],
)
def test_layers_may_have_products_of_both_kinds(
    model: tuple[ModelConfig, Weights], device: str, computed: list[int], monkeypatch: pytest.MonkeyPatch,
    large: Callable[[int, int], bool],
) -> None:  # fmt: skip
    monkeypatch.setattr(early_gemm, "pays", lambda rows, weight: large(*weight.shape))
    test_answers_and_scores_are_the_cpus(model, device, computed, interleaved=True)


@pytest.mark.parametrize("small", [None, "qkv", "output", "down"])
def test_a_handful_of_rows_leaves_the_fused_products_where_whole_layers_come_early(
    model: tuple[ModelConfig, Weights], device: str, monkeypatch: pytest.MonkeyPatch, small: str | None
) -> None:
    decoder = gpu_runner(model, device)._decoder
    alone = None if small is None else getattr(decoder.layers[0], small)
    monkeypatch.setattr(early_gemm, "pays", lambda rows, weight: weight is not alone)
    assert decoder.few_rows_fit(8) == (small is not None)


def test_a_step_in_which_nobody_samples_has_no_product_of_no_rows(
    model: tuple[ModelConfig, Weights], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []

    def product(hidden: torch.Tensor, weight: torch.Tensor, kind: Activation) -> torch.Tensor:
        computed.append(len(hidden))
        return activation.gated(hidden @ weight.T, kind)

    monkeypatch.setattr(gated_gemm, "pays", lambda hidden, weight: gated_gemm.faster(len(hidden), 14336, 132))
    monkeypatch.setattr(gated_gemm, "gated_product", product)
    [sequence] = step_driver.sequences(PROMPTS[-1:], BLOCKS, 1)
    step_driver.advance(gpu_runner(model, device), [(sequence, len(PROMPTS[-1]) - 1)])
    assert computed and min(computed) > 0
