"""Adapters against transformers with W + scale · B · A in place of W: every family's names, mixed batches, errors."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pagefleet_api.launch import Adapter, Launch
from pagefleet_engine.models.adapter_files import read_adapters
from pagefleet_engine.models.adapter_weights import AdapterWeights
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.decoder import Decoder
from pagefleet_engine.models.errors import ModelBroken, ModelUnsupported
from pagefleet_engine.models.source import resolve
from pagefleet_engine.models.tensor_names import expected_shapes
from pagefleet_engine.models.weights import open_weights
from pagefleet_engine.runner import loading
from pagefleet_engine.runner.errors import LaunchImpossible
from pagefleet_engine.runner.torch_runner import TorchRunner
from tests.pagefleet_engine.adapter_folders import stored, write_adapter, write_folder
from tests.pagefleet_engine.runner import references, step_driver
from tests.pagefleet_engine.runner.family_models import FAMILIES, write
from tests.pagefleet_engine.runner.test_families_numerics import text

pytestmark = pytest.mark.torch
ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
TARGETS = {
    "llama": (ATTENTION + MLP, ("q_proj", "v_proj")),
    "gemma2": (MLP, ("k_proj", "o_proj")),
    "phi3": (("qkv_proj", "gate_up_proj"), ("down_proj", "o_proj")),
    "qwen3 moe, some dense layers": (ATTENTION, ("q_proj",)),
    "granite": (("o_proj", "down_proj"), ("up_proj", "q_proj")),
}
"""By family what the first and what the second adapter has."""
BLOCKS = 64


def merged(reference: Any, folder: Path, scale: float) -> Any:
    """The reference model with an adapter's B · A added to its weights."""
    model, tensors = copy.deepcopy(reference), load_file(folder / "adapter_model.safetensors")
    with torch.no_grad():
        for name, down in tensors.items():
            if name.endswith("lora_A.weight"):
                base = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                model.get_submodule(base).weight += scale * tensors[stored(base, "B")] @ down
    return model


class Adapted:
    """A family's model with two adapters, ours and the references: the model itself, then each adapter merged."""

    def __init__(self, family: str, folder: Path) -> None:
        reference = write(FAMILIES[family], folder)
        files = resolve(f"file://{folder}")
        self.config = read_config(files)
        shapes = expected_shapes(self.config)
        first, second = TARGETS[family]
        layers = [index for index in range(self.config.layers) if index != 1]
        paths = [
            write_adapter(folder / "one", shapes, first, rank=4, seed=1),
            write_adapter(folder / "two", shapes, second, rank=9, seed=2, layers=layers, use_rslora=True),
        ]
        self.launched = [Adapter(path.name, str(path)) for path in paths]
        folders = read_adapters(self.launched)
        self.references = [
            reference,
            *(merged(reference, path, read.scale) for path, read in zip(paths, folders, strict=True)),
        ]
        weights = [AdapterWeights(read, self.config) for read in folders]
        cpu = torch.device("cpu")
        self.decoder = Decoder(
            self.config, open_weights(files, self.config), dtype=torch.float32, device=cpu, max_positions=256,
            adapters=weights,
        )  # fmt: skip


@pytest.fixture(scope="module", params=TARGETS)
def adapted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return Adapted(request.param, tmp_path_factory.mktemp("adapted"))


def test_a_mixed_batch_gives_each_row_the_logits_of_its_own_merged_model(adapted: Adapted) -> None:
    runner = TorchRunner(adapted.decoder, BLOCKS)
    prompts = [text(seed, tokens) for seed, tokens in enumerate((20, 33, 17, 40))]
    batch = step_driver.sequences(prompts, BLOCKS, 3)
    for sequence, adapter in zip(batch, (None, 0, 1, 0), strict=True):
        sequence.adapter, sequence.prompt_logprobs = adapter, 0
    step_driver.run_interleaved(runner, batch, 3, chunk=15)
    seen = set[float]()
    for sequence, prompt in zip(batch, prompts, strict=True):
        reference = adapted.references[0 if sequence.adapter is None else sequence.adapter + 1]
        exact = references.reference_logits(reference, prompt).log_softmax(-1)
        scored = [entry for result in sequence.results for entry in result.prompt_logprobs]
        assert [entry.token_id for entry in scored] == prompt[1:]
        off = max(abs(entry.logprob - exact[row, entry.token_id].item()) for row, entry in enumerate(scored))
        assert off <= references.MAX_LOGIT_DIFFERENCE
        references.assert_greedy(reference, prompt, sequence.answer[:3])
        base = references.reference_logits(adapted.references[0], prompt).log_softmax(-1)
        seen.add(round((exact - base).abs().max().item(), 3))
    assert min(seen - {0.0}) > 0.1, "the adapters change too little for this test to see"


@pytest.mark.parametrize("adapter", [None, 0, 1])
def test_a_step_for_one_adapter_alone_leaves_the_others_out(adapted: Adapted, adapter: int | None) -> None:
    reference = adapted.references[0 if adapter is None else adapter + 1]
    exact = references.reference_logits(reference, text(5, 21))
    ours = references.decoder_logits(adapted.decoder, text(5, 21), [17, 1, 3], adapter=adapter)
    assert (ours - exact).abs().max().item() <= references.MAX_LOGIT_DIFFERENCE


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModelConfig]:
    folder: Path = tmp_path_factory.mktemp("llama")
    write(FAMILIES["llama"], folder)
    return folder, read_config(resolve(f"file://{folder}"))


def test_the_launch_s_adapters_are_loaded_and_count_as_weights(llama: tuple[Path, ModelConfig], tmp_path: Path) -> None:
    folder, config = llama
    path = write_adapter(tmp_path / "sql", expected_shapes(config), ("q_proj",), rank=16)
    plain = Launch(model=f"file://{folder}", device="cpu", dtype="float32", num_kv_blocks=8)
    given = Launch.parse([*plain.argv(), "--adapter", f"sql={path}"])
    bytes_by_launch = [loading.load(launch).memory_bytes["weights"] for launch in (plain, given)]
    rows = config.hidden_size + (config.heads + 2 * config.kv_heads) * config.head_size
    owners = 16  # of q, and none of the other three
    assert bytes_by_launch[1] - bytes_by_launch[0] == 4 * (config.layers * 16 * rows + owners)


Q = "model.layers.0.self_attn.q_proj"
BEYOND = Q.replace(".0.", ".7.")
Shapes = Mapping[str, tuple[int, int]]
BAD: dict[str, tuple[Shapes, str]] = {
    "another hidden size": (
        {stored(Q, "A"): (4, 32), stored(Q, "B"): (64, 4)},
        r"lora_A.weight has shape \(4, 32\); for r of 4, .* must be \(4, 64\): is the adapter made for another",
    ),
    "another rank": ({stored(Q, "A"): (8, 64), stored(Q, "B"): (64, 8)}, r"has shape \(\d+, \d+\); for r of 4"),
    "half of a pair": ({stored(Q, "A"): (4, 64)}, r"has no tensor base_model.*q_proj\.lora_B\.weight"),
    "nothing": ({}, "has no tensor at all"),
    "a head": (
        {"base_model.model.lm_head.lora_A.weight": (4, 64)},
        r"tensor base_model\.model\.lm_head\.lora_A\.weight is for nothing that .* down_proj, gate_proj.* the last 3",
    ),
    "a layer too many": (
        {stored(BEYOND, "A"): (4, 64)},
        r"layers\.7\.self_attn\.q_proj\.lora_A\.weight is for nothing",
    ),
    "a magnitude": ({f"base_model.model.{Q}.lora_magnitude_vector": (1, 64)}, "lora_magnitude_vector is for nothing"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_the_model_is_refused_by_file_and_tensor(
    llama: tuple[Path, ModelConfig], tmp_path: Path, case: str
) -> None:
    shapes, says = BAD[case]
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    path = write_folder(tmp_path / "bad", tensors, {"r": 4})
    [folder] = read_adapters([Adapter("bad", str(path))])
    with pytest.raises((ModelBroken, ModelUnsupported), match=says) as refused:
        AdapterWeights(folder, llama[1])
    assert f"adapter 'bad': {path / 'adapter_model.safetensors'}" in str(refused.value)


def test_whole_numbers_are_no_weights(llama: tuple[Path, ModelConfig], tmp_path: Path) -> None:
    tensors: dict[str, np.ndarray[Any, Any]] = {stored(Q, "A"): np.zeros((4, 64), np.int8)}
    tensors |= {stored(Q, "B"): np.zeros((64, 4), np.float32)}
    [folder] = read_adapters([Adapter("bad", str(write_folder(tmp_path / "bad", tensors, {"r": 4})))])
    with pytest.raises(ModelUnsupported, match=r"q_proj\.lora_A\.weight is I8; this engine reads F32, BF16, F16"):
        AdapterWeights(folder, llama[1])


NUMBERS: dict[str, tuple[str, float, dict[str, Any]]] = {
    "no number in B": ("B", np.nan, {}),
    "infinity in A": ("A", -np.inf, {}),
    "too much in A": ("A", 3.4e38, {}),
    "too much in B once scaled": ("B", 1e37, {"lora_alpha": 400}),
    "a scale without bounds": ("B", 0.0, {"lora_alpha": 1e300}),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_that_would_reach_the_rows_of_others_are_refused_by_file_and_tensor(
    llama: tuple[Path, ModelConfig], tmp_path: Path, case: str
) -> None:
    letter, number, settings = NUMBERS[case]
    tensors = {stored(Q, "A"): np.ones((4, 64), np.float32), stored(Q, "B"): np.ones((64, 4), np.float32)}
    tensors[stored(Q, letter)][2, 1] = number
    path = write_folder(tmp_path / "bad", tensors, {"r": 4} | settings)
    launch = Launch(
        model=f"file://{llama[0]}", device="cpu", dtype="bfloat16", num_kv_blocks=8,
        adapters=(Adapter("bad", str(path)),),
    )  # fmt: skip
    with pytest.raises(ModelBroken) as refused:
        loading.load(launch)
    weights = path / "adapter_model.safetensors"
    assert f"adapter 'bad': {weights}: tensor {stored(Q, letter)} has numbers that are not finite" in str(refused.value)


def test_a_file_cut_short_is_named(llama: tuple[Path, ModelConfig], tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "cut", expected_shapes(llama[1]), ("q_proj",))
    weights = path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    [folder] = read_adapters([Adapter("cut", str(path))])
    with pytest.raises(ModelBroken, match="is no whole safetensors file"):
        AdapterWeights(folder, llama[1])


def test_a_model_of_transformers_code_takes_no_adapters(
    llama: tuple[Path, ModelConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "read_config", lambda files: replace(llama[1], foreign=True, architecture="falcon"))
    launch = Launch(model=f"file://{llama[0]}", device="cpu", adapters=(Adapter("sql", "/none"),))
    with pytest.raises(LaunchImpossible, match="--adapter sql: a falcon model is computed by transformers' code"):
        loading.load(launch)
