"""What a model that guesses for another one takes of a GPU's memory."""

from pagefleet_api.service import Spec
from pagefleet_api.sizing.demand import demand_of
from pagefleet_api.sizing.facts import ModelFacts
from pagefleet_api.sizing.fit import Demand, DraftSize, fit_cpu
from pagefleet_api.sizing.model import read_shape
from pagefleet_api.sizing.weights import of_config
from tests.pagefleet_api.sizing import configs
from tests.pagefleet_api.sizing.test_fit import fitted

SMALL = DraftSize(weights_bytes=2 << 30, kv_bytes_per_token=32_768)


def vllm(**more: object) -> Spec:
    engine = {"runtime": "vllm", "image": "v", "device": "cuda", "speculative": {"method": "draft"}, **more}
    return Spec.model_validate({"model": {"uri": "file:///m", "draft": {"uri": "file:///d"}}, "engine": engine})


def test_a_draft_is_shared_out_over_the_gpus_and_run_in_the_models_formats() -> None:
    facts = ModelFacts.read(configs.LLAMA_8B)
    whole, half = (demand_of(vllm(parallelism={"tensor": tensor}), draft=facts).draft for tensor in (1, 2))
    assert (whole.weights_bytes, whole.kv_bytes_per_token) == (16_060_522_496, 131_072)
    assert (half.weights_bytes, half.kv_bytes_per_token) == (8_030_261_248, 65_536)
    assert demand_of(vllm(kvCache={"dtype": "fp8"}), draft=facts).draft.kv_bytes_per_token == 65_536
    assert demand_of(vllm()).draft == DraftSize(0, 0)


def test_what_a_draft_takes_is_missing_from_the_cache_and_each_token_takes_more() -> None:
    plain = fitted(configs.LLAMA_8B, demand=Demand(runtime="vllm", max_model_len=4096))
    drafted = fitted(configs.LLAMA_8B, demand=Demand(runtime="vllm", max_model_len=4096, draft=SMALL))
    assert plain.kv_bytes - drafted.kv_bytes == drafted.draft_bytes == 2 << 30
    assert drafted.kv_bytes_per_token - plain.kv_bytes_per_token == 32_768
    assert drafted.kv_tokens == drafted.kv_bytes // drafted.kv_bytes_per_token // 16 * 16
    assert "weights 15.0 GiB, the draft's 2.0 GiB, a step" in drafted.breakdown


def test_a_containers_memory_has_room_for_a_draft() -> None:
    shape = read_shape(configs.LLAMA_8B)
    plain, drafted = (
        fit_cpu(shape, of_config(shape, 4), Demand(device="cpu", kv_size_bytes=1 << 30, draft=draft), None)
        for draft in (DraftSize(0, 0), SMALL)
    )
    assert drafted.budget_bytes - plain.budget_bytes == drafted.draft_bytes == 2 << 30
    assert drafted.kv_tokens < plain.kv_tokens
