"""From launch flags to a runner, and what is refused on the way."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pagefleet_api.launch import Launch
from pagefleet_engine import core_process
from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.config_gguf import from_gguf
from pagefleet_engine.models.errors import ModelBroken, ModelNotFound, ModelUnsupported
from pagefleet_engine.models.gguf import Gguf
from pagefleet_engine.models.source import GgufModel, resolve
from pagefleet_engine.models.tensor_names import expected_shapes
from pagefleet_engine.models.weights import open_weights
from pagefleet_engine.runner import loading, probe
from pagefleet_engine.runner.errors import LaunchImpossible
from pagefleet_engine.runner.probe import ProbeTimes, faster_dtype
from pagefleet_engine.steps import Sampling, SequenceStep, StepPlan, execute
from tests.pagefleet_engine.models import gguf_files
from tests.pagefleet_engine.tiny_model import write_tiny_model

pytestmark = pytest.mark.torch
FIRST_STEP = StepPlan(
    (SequenceStep(sequence_id=0, token_ids=(1, 2), start=0, block_table=(0,), sample=True, sampling=Sampling(seed=0)),)
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "tiny")


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16", "float16"])
def test_a_folder_becomes_a_runner(folder: Path, dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    launch = Launch(model=f"file://{folder}", dtype=dtype, max_model_len=100, max_num_seqs=3)
    with caplog.at_level(logging.INFO):
        loaded = core_process.load_runner(launch)
    assert (loaded.max_model_len, loaded.device, loaded.vocab_size) == (100, "cpu", 266)
    assert loaded.runner.num_blocks == 3 * 7
    assert loaded.dtype == dtype or (dtype == "auto" and loaded.dtype in {"float32", "bfloat16"})
    assert set(loaded.phase_s) == {"import", "weights", "kv"}
    element_bytes = 4 if loaded.dtype == "float32" else 2
    assert loaded.memory_bytes["kv"] == 21 * 16 * 2 * 2 * 2 * 16 * element_bytes
    weights = sum(np.prod(shape) for shape in expected_shapes(read_config(resolve(launch.model))).values())
    assert loaded.memory_bytes["weights"] == weights * element_bytes
    assert ("dtype_measured" in caplog.text) == (dtype == "auto")
    assert execute(loaded.runner, FIRST_STEP)[0].failure is None


def test_a_gguf_file_becomes_a_runner(tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.llama_metadata(), gguf_files.llama_tensors())
    loaded = loading.load(Launch(model=f"file://{path}", dtype="float32", num_kv_blocks=2))
    assert execute(loaded.runner, FIRST_STEP)[0].failure is None


def test_llama_cpps_row_order_is_undone(tmp_path: Path) -> None:
    tensors = gguf_files.llama_tensors()
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.llama_metadata(), tensors)
    weights = open_weights(GgufModel("file://m", path), from_gguf(Gguf(path)))
    for part, heads in (("q", 4), ("k", 2)):
        shape, _, raw = tensors[f"blk.1.attn_{part}.weight"]
        stored = np.frombuffer(raw, "<f4").reshape(shape)
        ours = weights.tensor(f"model.layers.1.self_attn.{part}_proj.weight").numpy()
        # As llama.cpp's convert_hf_to_gguf.py permutes.
        permuted = ours.reshape(heads, 2, 4, 32).swapaxes(1, 2).reshape(shape)
        np.testing.assert_array_equal(permuted, stored)


def test_flags_that_this_machine_or_model_cannot_follow_are_refused(folder: Path) -> None:
    uri = f"file://{folder}"
    with pytest.raises(LaunchImpossible, match="--max-model-len 513"):
        loading.load(Launch(model=uri, max_model_len=513))
    with pytest.raises(LaunchImpossible, match="--kv-cache-bytes 1 holds no block"):
        loading.load(Launch(model=uri, kv_cache_bytes=1))
    with pytest.raises(LaunchImpossible, match="--batch-invariant needs a GPU"):
        loading.load(Launch(model=uri, device="cpu", dtype="float32", batch_invariant=True))
    with pytest.raises(ModelNotFound, match="no-such"):
        loading.load(Launch(model="pkg://no-such"))
    if not torch.cuda.is_available():
        with pytest.raises(LaunchImpossible, match="--device cuda: torch sees no GPU"):
            loading.load(Launch(model=uri, device="cuda"))


def test_a_gpu_is_taken_when_there_is_one(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [loading.choose_device(asked) for asked in ("auto", "cuda", "cpu")] == ["cuda", "cuda", "cpu"]
    config = read_config(resolve(f"file://{folder}"))
    assert loading.choose_dtype("auto", "cuda", config) == "float32"


@pytest.mark.parametrize(
    ("float32", "bfloat16", "chosen"),
    [
        (ProbeTimes(2.0, 2.0), ProbeTimes(1.0, 1.0), "bfloat16"),
        (ProbeTimes(1.0, 1.0), ProbeTimes(1.0, 1.0), "float32"),
        (ProbeTimes(1.05, 1.05), ProbeTimes(1.0, 1.0), "float32"),
        (ProbeTimes(2.0, 1.0), ProbeTimes(1.0, 1.5), "bfloat16"),
        (ProbeTimes(1.0, 2.0), ProbeTimes(1.4, 1.0), "float32"),
        (ProbeTimes(1.0, 1.0), ProbeTimes(5.0, 5.0), "float32"),
    ],
)
def test_decode_speed_weighs_more_in_the_choice_of_format(
    float32: ProbeTimes, bfloat16: ProbeTimes, chosen: str
) -> None:
    assert faster_dtype(float32, bfloat16) == chosen


def test_the_probe_measures_both_shapes_by_the_clock_it_is_given(folder: Path) -> None:
    ticks = iter(range(100))
    times = probe.measure(read_config(resolve(f"file://{folder}")), torch.float32, clock=lambda: float(next(ticks)))
    assert times == ProbeTimes(1.0, 1.0)


def test_weights_that_are_missing_cut_or_of_another_shape_or_type_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    state, name = load_file(path), "model.layers.1.mlp.up_proj.weight"
    launch = Launch(model=f"file://{folder}", dtype="float32", num_kv_blocks=1)
    for changed, error, message in (
        ({key: value for key, value in state.items() if key != name}, ModelBroken, f"have no tensor {name}"),
        (state | {name: torch.zeros(3, 5)}, ModelBroken, r"has shape \(3, 5\), the configuration asks for \(96, 64\)"),
        (state | {name: state[name].to(torch.int8)}, ModelUnsupported, "is torch.int8"),
    ):
        save_file(changed, path)
        with pytest.raises(error, match=message):
            loading.load(launch)
    save_file(state, path)
    whole = path.read_bytes()
    for size in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelBroken, match=r"model\.safetensors is no whole safetensors file"):
            loading.load(launch)


def test_a_gguf_without_a_tensor_or_with_another_shape_is_refused(tmp_path: Path) -> None:
    tensors = gguf_files.llama_tensors()
    path = tmp_path / "m.gguf"
    launch = Launch(model=f"file://{path}", dtype="float32", num_kv_blocks=1)
    gguf_files.write(path, gguf_files.llama_metadata(), {k: t for k, t in tensors.items() if "blk.1.ffn_up" not in k})
    with pytest.raises(ModelBroken, match=r"has no tensor blk\.1\.ffn_up\.weight"):
        loading.load(launch)
    other = gguf_files.f32(np.zeros((33, 32)))
    gguf_files.write(path, gguf_files.llama_metadata(), tensors | {"blk.0.attn_q.weight": other})
    with pytest.raises(ModelBroken, match=r"blk\.0\.attn_q\.weight has shape \(33, 32\)"):
        loading.load(launch)
