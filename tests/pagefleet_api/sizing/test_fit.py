from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_api.service import Spec
from pagefleet_api.sizing import gpu_types, weights
from pagefleet_api.sizing.demand import demand_of, memory_limit_bytes
from pagefleet_api.sizing.fit import Demand, Fit, fit, fit_cpu
from pagefleet_api.sizing.model import read_shape
from tests.pagefleet_api.sizing import configs
from tests.pagefleet_api.sizing.configs import Config

FP8 = {"quantization_config": {"quant_method": "fp8"}}


def fitted(config: Config, gpu: str = "H200", demand: Demand | None = None) -> Fit:
    shape, demand = read_shape(config), demand or Demand()
    total = weights.of_config(shape, demand.element_bytes(shape))
    return fit(shape, total, demand, gpu_types.named(gpu, gpu_types.known()))


@pytest.mark.parametrize(
    ("config", "demand", "measured"),
    [
        pytest.param(configs.LLAMA_8B, Demand(max_model_len=4096), 886_208, id="ours, llama-8b, window of 4096"),
        pytest.param(configs.LLAMA_8B, Demand(max_model_len=34_816), 883_500, id="ours, llama-8b"),
        pytest.param(configs.QWEN3_0_6B, Demand(), 1_145_000, id="ours, qwen3-0.6b"),
        pytest.param(configs.LLAMA_8B, Demand(runtime="vllm"), 891_392, id="vllm 0.24, llama-8b"),
        pytest.param(configs.LLAMA_8B | FP8, Demand(runtime="vllm", kv_dtype="fp8"), 1_889_104, id="vllm 0.24, fp8"),
    ],
)
def test_tokens_come_within_half_a_percent_of_what_an_h200_gave(config: Config, demand: Demand, measured: int) -> None:
    tokens = fitted(config, demand=demand).kv_tokens
    print(f"estimated {tokens:,}, measured {measured:,}: {100 * (tokens / measured - 1):+.2f} %")
    assert tokens == pytest.approx(measured, rel=0.005)


def test_the_first_of_two_ranks_keeps_the_ends_whole_as_measured() -> None:
    two = fitted(configs.LLAMA_8B, demand=Demand(max_model_len=4096, tensor=2))
    assert two.weights_bytes == pytest.approx(9_081_200_640, rel=1e-3)
    assert two.kv_bytes_per_token == 65_536
    other = fitted(configs.LLAMA_8B, demand=Demand(runtime="vllm", max_model_len=4096, tensor=2))
    assert other.weights_bytes == 16_060_522_496 // 2


def test_a_gpu_of_a_pipeline_holds_the_layers_of_its_stage_and_one_end_of_the_model() -> None:
    one, four, five = (
        fitted(configs.LLAMA_8B, demand=Demand(runtime="vllm", max_model_len=4096, pipeline=stages))
        for stages in (1, 4, 5)
    )
    end = 128_256 * 4096 * 2
    assert four.weights_bytes == (one.weights_bytes - 2 * end) // 4 + end
    assert four.kv_bytes_per_token == one.kv_bytes_per_token // 4
    # 32 layers by 5 stages: the fullest has 7 of them
    assert five.kv_bytes_per_token == one.kv_bytes_per_token * 7 // 32
    assert fitted(configs.LLAMA_70B, demand=Demand(runtime="vllm", tensor=1, pipeline=2)).fits
    assert not fitted(configs.LLAMA_70B, demand=Demand(runtime="vllm")).fits


def test_where_the_memory_goes_adds_up() -> None:
    found = fitted(configs.LLAMA_8B, demand=Demand(max_model_len=4096))
    parts = found.weights_bytes + found.activations_bytes + found.reserved_bytes + found.kv_bytes
    assert parts == found.budget_bytes
    assert found.breakdown.startswith("of 125.8 GiB on H200: weights 15.0 GiB, a step 1.3 GiB")


def test_without_a_length_our_engine_takes_the_window_that_fits_and_others_refuse() -> None:
    ours = fitted(configs.LLAMA_8B, "L4")
    assert ours.fits
    assert ours.window_tokens == ours.kv_tokens < 131_072
    theirs = fitted(configs.LLAMA_8B, "L4", Demand(runtime="vllm"))
    assert theirs.reason is not None
    assert "one sequence of 131,072 tokens takes 16.0 GiB" in theirs.reason
    assert f"engine.maxModelLen to at most {theirs.kv_tokens}" in theirs.reason


def test_the_cache_is_no_larger_than_all_seats_can_fill() -> None:
    few = fitted(configs.LLAMA_8B, demand=Demand(max_model_len=100, max_num_seqs=3))
    assert few.kv_tokens == 3 * 112


def test_windows_make_room_only_where_the_runtime_bounds_them() -> None:
    ours = fitted(configs.MISTRAL_7B_V01, demand=Demand(max_model_len=32_768))
    theirs = fitted(configs.MISTRAL_7B_V01, demand=Demand(max_model_len=32_768, runtime="vllm"))
    assert theirs.sequences == pytest.approx(8 * ours.sequences, rel=0.02)


@pytest.mark.parametrize(
    ("config", "gpu", "demand", "words"),
    [
        (configs.LLAMA_70B, "H100", Demand(), "are missing before the first key and value"),
        (configs.LLAMA_8B, "T4", Demand(), "compute capability 7.5"),
        (configs.LLAMA_8B, "MI300X", Demand(), "runs on NVIDIA GPUs"),
        (configs.LLAMA_8B, "H200", Demand(tensor=3), "32 attention heads cannot be shared by 3 GPUs"),
        (configs.LLAMA_8B, "H200", Demand(pipeline=33), "32 layers cannot be shared by 33 stages; give a smaller"),
        (configs.LLAMA_8B | FP8, "H200", Demand(), "serves unquantised weights, these are fp8"),
        (configs.DEEPSEEK_V2_LITE, "H200", Demand(), "latent attention"),
        (configs.LLAMA_8B, "L4", Demand(kv_size_bytes=4 << 30, max_model_len=64), "engine.kvCache.size is 4.0 GiB"),
    ],
)
def test_a_misfit_says_why_with_numbers_and_the_way_out(config: Config, gpu: str, demand: Demand, words: str) -> None:
    found = fitted(config, gpu, demand)
    assert not found.fits
    assert found.reason is not None
    assert words in found.reason


def test_a_node_whose_age_nobody_knows_is_given_the_benefit_of_the_doubt() -> None:
    unknown = gpu_types.of_node("NVIDIA-X1", 50_000, gpu_types.known())
    assert unknown is not None
    shape = read_shape(configs.LLAMA_8B)
    assert fit(shape, weights.of_config(shape, 2), Demand(), unknown).fits


@pytest.mark.parametrize(
    ("demand", "stored", "size"),
    [
        (Demand(), "float32", 4),
        (Demand(runtime="vllm"), "float32", 2),
        (Demand(device="cpu"), "bfloat16", 4),
        (Demand(runtime="vllm", device="cpu"), "bfloat16", 2),
        (Demand(dtype="float32"), "bfloat16", 4),
        (Demand(), "of the future", 2),
    ],
)
def test_the_number_format_is_what_the_engine_would_choose(demand: Demand, stored: str, size: int) -> None:
    assert demand.element_bytes(read_shape(configs.LLAMA_8B | {"torch_dtype": stored})) == size


def test_another_runtime_may_serve_what_ours_does_not() -> None:
    for config in (configs.LLAMA_8B | FP8, configs.DEEPSEEK_V2_LITE):
        assert fitted(config, "H200", Demand(runtime="vllm", max_model_len=8192)).fits
    assert fitted(configs.LLAMA_8B, "MI300X", Demand(runtime="vllm")).fits


def test_a_model_without_keys_has_no_tokens_to_count() -> None:
    shape = replace(read_shape(configs.LLAMA_8B), kv=())
    found = fit(shape, weights.of_config(shape, 2), Demand(), gpu_types.named("H200", gpu_types.known()))
    assert found.kv_tokens == 0
    assert found.sequences == 0


@given(st.integers(1, 131_072), st.sampled_from(["L4", "H100", "H200"]), st.sampled_from([1, 2, 4, 8]))
def test_what_fits_fits_with_more_memory_and_tokens_come_in_blocks(length: int, gpu: str, tensor: int) -> None:
    demand = Demand(max_model_len=length, tensor=tensor)
    small, large = fitted(configs.LLAMA_8B, gpu, demand), fitted(configs.LLAMA_8B, "H200", demand)
    assert small.kv_tokens <= large.kv_tokens
    assert large.fits or not small.fits
    assert small.kv_tokens == 16 * small.kv_blocks


def spec(**engine: object) -> Spec:
    model = {"uri": "hf://o/m", "revision": "r", "cache": {"mode": "Node"}}
    return Spec.model_validate({"model": model, "engine": engine, "resources": {"limits": {"memory": "2Gi"}}})


def test_the_resource_says_what_is_computed_for() -> None:
    found = demand_of(spec(maxModelLen=2048, maxNumSeqs=8, dtype="float32", kvCache={"size": "1Gi"}))
    assert found == Demand(max_model_len=2048, max_num_seqs=8, dtype="float32", kv_size_bytes=1 << 30)
    assert demand_of(spec(device="cpu", kvCache={"size": "1Gi"})).max_num_batched_tokens == 512
    assert demand_of(spec(parallelism={"tensor": 4})).tensor == 4
    assert demand_of(spec(runtime="vllm", image="i", parallelism={"pipeline": 4})).pipeline == 4
    vllm = spec(runtime="vllm", image="i", quantization="fp8", kvCache={"dtype": "fp8", "memoryUtilization": "0.85"})
    assert demand_of(vllm) == Demand(runtime="vllm", quantisation="fp8", kv_dtype="fp8", memory_utilisation=0.85)
    assert demand_of(spec(maxNumBatchedTokens=64)) == Demand(max_num_batched_tokens=64)
    assert memory_limit_bytes(spec()) == 2 << 30
    assert memory_limit_bytes(Spec.model_validate({"model": {"uri": "pkg://m"}})) is None


def on_cpu(kv_size: int, limit: int | None) -> Fit:
    shape, demand = (
        read_shape(configs.QWEN3_0_6B),
        Demand(device="cpu", max_num_batched_tokens=512, kv_size_bytes=kv_size),
    )
    return fit_cpu(shape, weights.of_config(shape, demand.element_bytes(shape)), demand, limit)


def test_on_a_cpu_the_container_s_limit_must_hold_it_all() -> None:
    assert on_cpu(1 << 30, None).fits
    roomy = on_cpu(1 << 30, 8 << 30)
    assert roomy.fits
    assert roomy.kv_tokens == roomy.window_tokens == (1 << 30) // (2 * 114_688) // 16 * 16
    tight = on_cpu(1 << 30, 2 << 30)
    assert tight.reason is not None
    assert "more than resources.limits.memory 2.0 GiB; raise it to at least" in tight.reason
    none = on_cpu(1 << 20, 8 << 30)
    assert none.reason is not None
    assert "holds no block of 16 tokens" in none.reason
