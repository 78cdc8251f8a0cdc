"""`/metrics` and `/load` against their contracts."""

import dataclasses
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagefleet_api.load import EngineState, LoadReport
from pagefleet_api.metrics import ENGINE, Engine, Kind
from pagefleet_api.vllm_names import LORA_REQUESTS_INFO, VLLM_ALIASES
from pagefleet_engine.api import exposition
from pagefleet_engine.api.recorder import OUTCOMES, Recorder
from pagefleet_engine.api.snapshot import Snapshot
from pagefleet_engine.models.adapter_files import AdapterFolder
from pagefleet_engine.steps import GpuStatus
from pagefleet_engine.wire import CoreStatus, StepTimes
from tests.pagefleet_engine.api.test_planning import READY

STATUS = CoreStatus(
    running=3,
    waiting=2,
    queued_prompt_tokens=32,
    blocks_used=32,
    blocks_cached=8,
    blocks_free=24,
    blocks_leaked=0,
    prompt_tokens_computed_total=10,
    prompt_tokens_cached_total=6,
    prefix_queries_total=16,
    prefix_hits_total=6,
    preemptions_total=1,
    block_allocation_failures_total=4,
    prefill_tokens_total=40,
    decode_tokens_total=25,
    seconds_since_last_step=0.5,
)
BUSY = Snapshot(
    state=EngineState.READY,
    ready=READY,
    status=STATUS,
    silent_s=0.25,
    busy_s=60.0,
    open_sequences=6,
    earlier=msgspec.structs.replace(STATUS, prefill_tokens_total=10, decode_tokens_total=5),
)
STARTING = Snapshot(state=EngineState.STARTING, ready=None, status=None, silent_s=0.0, busy_s=None, open_sequences=0)


def scrape(snapshot: Snapshot, recorder: Recorder | None = None, *, vllm_names: bool = True) -> dict[str, float]:
    """Every sample of one scrape by name and labels without `model_name`, read by Prometheus's own parser."""
    text = exposition.render("m", snapshot, recorder or Recorder(), vllm_names=vllm_names).decode()
    return {
        sample.name + str(sorted((k, v) for k, v in sample.labels.items() if k not in ("model_name", "engine"))): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def names(samples: dict[str, float]) -> set[str]:
    return {key.partition("[")[0] for key in samples}


def test_a_ready_engine_exports_every_family_of_the_contract_from_the_first_scrape() -> None:
    found = names(scrape(BUSY))
    expected = {series for metric in (*ENGINE, *(alias for alias, _ in VLLM_ALIASES)) for series in metric.series}
    of_adapters = {Engine.LORA_ADAPTERS_INFO.name, LORA_REQUESTS_INFO.name}
    without_phases = {Engine.MEMORY_BYTES.name, Engine.STARTUP_PHASE.name}
    of_a_gpu = {Engine.CUDA_GRAPH_STEPS.name, Engine.CUDA_GRAPH_PADDING.name}
    assert expected - without_phases - of_a_gpu - of_adapters <= found


def test_only_contract_names_are_exported() -> None:
    expected = {series for metric in (*ENGINE, *(alias for alias, _ in VLLM_ALIASES)) for series in metric.series}
    assert names(scrape(BUSY)) <= expected


def test_a_starting_engine_has_no_pool_gauges_as_nothing_is_known_of_the_pool() -> None:
    found = scrape(STARTING)
    assert not any(key.startswith("pagefleet_kv_cache_usage_ratio") for key in found)
    assert found["pagefleet_engine_state[('state', 'starting')]"] == 1
    assert found["pagefleet_engine_state[('state', 'ready')]"] == 0


def on_a_gpu(gpu: GpuStatus, earlier: GpuStatus) -> Snapshot:
    status = msgspec.structs.replace(STATUS, gpu=gpu)
    return dataclasses.replace(BUSY, status=status, earlier=msgspec.structs.replace(STATUS, gpu=earlier))


def test_a_gpu_tells_of_its_graphs() -> None:
    found = scrape(on_a_gpu(GpuStatus(90, 10, 1000, 400), GpuStatus(80, 10, 920, 380)))
    assert found["pagefleet_cuda_graph_steps_total[('hit', 'true')]"] == 90
    assert found["pagefleet_cuda_graph_steps_total[('hit', 'false')]"] == 10
    assert found["pagefleet_cuda_graph_padding_ratio[]"] == 20 / 80


def test_a_gpu_that_replayed_nothing_lately_has_no_padding_and_its_counters_stay() -> None:
    idle = GpuStatus(90, 10, 1000, 400)
    found = scrape(on_a_gpu(idle, idle))
    assert "pagefleet_cuda_graph_padding_ratio[]" not in found
    assert found["pagefleet_cuda_graph_steps_total[('hit', 'true')]"] == 90


def test_without_a_gpu_nothing_is_said_of_graphs() -> None:
    assert not any("cuda_graph" in key for key in scrape(BUSY) | scrape(STARTING))


def test_work_for_prompts_is_compared_with_decodes_of_late_alone() -> None:
    assert scrape(BUSY)["pagefleet_prefill_decode_token_ratio[]"] == (40 - 10) / (25 - 5)
    prompts_alone = dataclasses.replace(BUSY, earlier=msgspec.structs.replace(STATUS, prefill_tokens_total=0))
    assert "pagefleet_prefill_decode_token_ratio[]" not in scrape(prompts_alone)
    assert "pagefleet_prefill_decode_token_ratio[]" not in scrape(STARTING)


def memory(snapshot: Snapshot) -> dict[str, float]:
    """Bytes by kind."""
    family = "pagefleet_memory_bytes[('kind', '"
    return {
        key.removeprefix(family).removesuffix("')]"): value
        for key, value in scrape(snapshot).items()
        if key.startswith(family)
    }


def test_memory_has_what_was_taken_at_the_start_and_what_is_in_use_now() -> None:
    ready = msgspec.structs.replace(READY, memory_bytes={"weights": 100, "kv": 50})
    on_a_cpu = dataclasses.replace(BUSY, ready=ready, core_bytes=170)
    assert memory(on_a_cpu) == {"weights": 100, "kv": 50, "process": 170}
    gpu = msgspec.structs.replace(STATUS, gpu=GpuStatus(allocated_bytes=155))
    assert memory(dataclasses.replace(on_a_cpu, status=gpu))["allocated"] == 155


def test_while_it_loads_an_engine_tells_how_its_process_grows() -> None:
    assert memory(dataclasses.replace(STARTING, core_bytes=30)) == {"process": 30}
    assert memory(STARTING) == {}


ADAPTERS = (AdapterFolder("sql", Path("/a"), 16, 2.0), AdapterFolder("chat", Path("/b"), 8, 1.0))


def test_each_adapter_is_one_series_and_all_are_one_of_vllms() -> None:
    found = scrape(dataclasses.replace(BUSY, adapters=ADAPTERS))
    assert {key: value for key, value in found.items() if "lora" in key} == {
        "pagefleet_lora_adapters_info[('adapter', 'sql'), ('rank', '16')]": 1,
        "pagefleet_lora_adapters_info[('adapter', 'chat'), ('rank', '8')]": 1,
        "vllm:lora_requests_info[('max_lora', '2'), ('running_lora_adapters', 'sql,chat'), "
        "('waiting_lora_adapters', '')]": 1,
    }


def test_adapters_are_told_once_they_are_loaded_and_only_where_there_are_any() -> None:
    for snapshot in (BUSY, dataclasses.replace(STARTING, adapters=ADAPTERS)):
        assert not any("lora" in key for key in scrape(snapshot))


def test_label_values_are_there_at_zero_before_anything_happened() -> None:
    found = scrape(STARTING)
    assert all(found[f"pagefleet_requests_total[('outcome', '{outcome}')]"] == 0 for outcome in OUTCOMES)
    assert found["pagefleet_rejections_total[('reason', 'queue_full')]"] == 0
    assert found["vllm:request_success_total[('finished_reason', 'abort')]"] == 0


def test_gauges_say_what_the_core_said() -> None:
    found = scrape(BUSY)
    assert (found["pagefleet_requests_running[]"], found["pagefleet_requests_waiting[]"]) == (4, 2)
    assert found["pagefleet_kv_cache_usage_ratio[]"] == 0.5
    assert found["pagefleet_kv_demand_ratio[]"] == (32 * 16 + 32) / (64 * 16)
    assert found["pagefleet_seconds_since_last_step[]"] == 0.75
    assert found["vllm:kv_cache_usage_perc[]"] == 0.5
    assert found["vllm:cache_config_info[('block_size', '16'), ('num_gpu_blocks', '64')]"] == 1
    assert found["vllm:num_preemptions_total[]"] == 1


def test_those_that_wait_are_told_apart_by_what_the_earliest_lacks() -> None:
    def by_reason(running: int) -> tuple[float, float]:
        found = scrape(dataclasses.replace(BUSY, status=msgspec.structs.replace(STATUS, running=running)))
        family = "pagefleet_requests_waiting_by_reason"
        return found[f"{family}[('reason', 'seats')]"], found[f"{family}[('reason', 'capacity')]"]

    assert by_reason(READY.max_num_seqs) == (2, 0)
    assert by_reason(READY.max_num_seqs - 1) == (0, 2)
    starting = scrape(STARTING)
    assert starting["pagefleet_requests_waiting_by_reason[('reason', 'capacity')]"] == 0


def test_aliases_can_be_turned_off() -> None:
    assert not any(name.startswith("vllm:") for name in names(scrape(BUSY, vllm_names=False)))


def test_histograms_count_each_value_in_every_bucket_that_holds_it() -> None:
    recorder = Recorder()
    for value in (0.0005, 0.0006, 9.0, -1.0):
        recorder.observe(Engine.INTER_TOKEN_LATENCY, value)
    recorder.step(StepTimes(0.001, 0.2, 17))
    found = scrape(BUSY, recorder)
    family = "pagefleet_inter_token_latency_seconds"
    assert found[f"{family}_bucket[('le', '0.0005')]"] == 2
    assert found[f"{family}_bucket[('le', '0.001')]"] == 3
    assert found[f"{family}_bucket[('le', '+Inf')]"] == found[f"{family}_count[]"] == 4
    assert found["pagefleet_step_phase_seconds_sum[('phase', 'forward')]"] == 0.2
    assert found["vllm:inter_token_latency_seconds_count[]"] == 4


def test_the_recorder_counts_only_what_it_knows() -> None:
    recorder = Recorder()
    recorder.count(Engine.REQUESTS, "stop", by=2)
    assert recorder.counters[Engine.REQUESTS, ("stop",)] == 2
    with pytest.raises(KeyError):
        recorder.count(Engine.REQUESTS, "unheard of")
    assert recorder.mean(Engine.REQUEST_DURATION) is None
    recorder.observe(Engine.REQUEST_DURATION, 2.0)
    assert recorder.mean(Engine.REQUEST_DURATION) == 2.0
    assert all(metric.kind is not Kind.GAUGE for metric, _ in (*recorder.counters, *recorder.histograms))


def test_load_says_that_what_is_not_waiting_is_running() -> None:
    load = BUSY.load()
    assert load is not None
    assert (load.running, load.waiting, load.blocks_used, load.blocks_total) == (4, 2, 32, 64)
    assert LoadReport.model_validate_json(load.model_dump_json(by_alias=True)) == load


def test_load_never_counts_more_waiting_than_open() -> None:
    snapshot = dataclasses.replace(BUSY, open_sequences=1)
    assert (snapshot.running, snapshot.waiting) == (0, 1)


def test_an_idle_engine_has_no_age_of_its_last_step() -> None:
    assert dataclasses.replace(BUSY, silent_s=3.0, busy_s=None, open_sequences=0).seconds_since_last_step == 0.0


def test_a_step_from_before_the_first_open_request_has_no_age_either() -> None:
    idle_long = msgspec.structs.replace(STATUS, seconds_since_last_step=4.8)
    snapshot = dataclasses.replace(BUSY, status=idle_long, silent_s=0.03, busy_s=0.02, open_sequences=1)
    assert snapshot.seconds_since_last_step == 0.02
    load = snapshot.load()
    assert load is not None
    assert load.seconds_since_last_step == 0.02


def test_load_is_unknown_until_the_pool_is() -> None:
    assert STARTING.load() is None
