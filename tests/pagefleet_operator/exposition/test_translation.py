"""Each engine's own text, by its present names and the ones before, in our words."""

from pathlib import Path
from typing import NamedTuple

import pytest

from pagefleet_api.load import Load
from pagefleet_api.runtimes import TRAITS, MetricNames, Runtime, custom_place
from pagefleet_operator.engines.exposition import parse
from pagefleet_operator.engines.translation import latencies, load

ENGINES = Path(__file__).parent / "engines"


class Case(NamedTuple):
    file: str
    load: Load
    ttft_p50_s: float | None
    itl_p50_s: float | None
    ended: float | None
    failed: float | None


CASES = (
    Case("vllm", Load(running=2, waiting=6, kv_share=1 / 11, block_size=128, blocks_total=45), 2.5, 0.0629, 2, 0),
    Case(
        "vllm-before-0.11",
        Load(running=3, waiting=1, kv_share=0.42, block_size=16, blocks_total=27_000),
        0.175, 0.0167, 42, 0,
    ),
    Case(
        "sglang",
        Load(running=12, waiting=3, kv_share=0.2, block_size=64, blocks_total=14_000),
        0.09, 0.005, 90, None,
    ),
    Case(
        "sglang-before-0.5",
        Load(running=162, waiting=2826, kv_share=0.28, block_size=1, blocks_total=454_400),
        None, 0.03, None, None,
    ),
    Case("tgi", Load(running=9, waiting=4), None, 0.0197, 123, 5),
    Case(
        "tensorrt-llm",
        Load(running=3, waiting=2, kv_share=0.62, block_size=32, blocks_total=12_000),
        0.052, 0.005, 26, 1,
    ),
    Case("tensorrt-llm-before-1.2", Load(kv_share=0.05), 0.125, None, 8, 0),
)  # fmt: skip


def test_by_priority_sglang_tells_each_queue_twice_and_the_sum_alone_counts() -> None:
    text = (ENGINES / "sglang.prom").read_text()
    lines = [line for line in text.splitlines() if line.startswith(("sglang:num_running", "sglang:num_queue"))]
    found = TRAITS[Runtime.SGLANG].names
    sums = text.replace('pp_rank="0"', 'pp_rank="0",priority=""')
    each = "\n".join(lines).replace('pp_rank="0"', 'pp_rank="0",priority="0"') + "\n"
    by_priority = load(parse(sums + each, found.load_prefixes()), found)
    assert 'priority="0"' in each
    assert by_priority == load(parse(text, found.load_prefixes()), found)


def names(file: str) -> MetricNames:
    return TRAITS[Runtime(file.partition("-before")[0])].names


def test_several_model_names_are_one_load() -> None:
    """An engine with adapters may count them by their names, and tells which of them run."""
    text = (ENGINES / "vllm.prom").read_text()
    more = (
        'vllm:lora_requests_info{max_lora="2",running_lora_adapters="sql",waiting_lora_adapters=""} 1.7e+09',
        'vllm:num_requests_running{engine="0",model_name="sql"} 5.0',
    )
    told = load(parse("\n".join((text, *more, "")), names("vllm").load_prefixes()), names("vllm"))
    assert (told.running, told.waiting) == (2 + 5, 6)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_an_engines_own_text_is_its_load(case: Case) -> None:
    text = (ENGINES / f"{case.file}.prom").read_text()
    told = load(parse(text, names(case.file).load_prefixes()), names(case.file))
    assert told.model_dump() == case.load.model_dump()
    assert told.kv_usage == (None if case.load.kv_share is None else pytest.approx(case.load.kv_share))
    assert told.state is None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_an_engines_own_text_is_how_its_answers_went(case: Case) -> None:
    text = (ENGINES / f"{case.file}.prom").read_text()
    told = latencies(parse(text, names(case.file).timing_prefixes()), names(case.file), restarts=2)
    assert (told.ended, told.failed, told.restarts) == (case.ended, case.failed, 2)
    for histogram, expected in ((told.ttft, case.ttft_p50_s), (told.itl, case.itl_p50_s)):
        median = None if histogram is None else histogram.quantile(0.5)
        assert median == (None if expected is None else pytest.approx(expected, rel=0.01))


def test_every_engine_has_a_text_here() -> None:
    foreign = {runtime for runtime, traits in TRAITS.items() if traits.image and runtime is not Runtime.CUSTOM}
    assert foreign == {Runtime(case.file) for case in CASES if "-before" not in case.file}


def test_what_is_absent_or_cannot_be_is_missing_and_never_zero() -> None:
    vllm = TRAITS[Runtime.VLLM].names
    assert load(parse(""), vllm) == Load()
    assert load(parse(""), vllm).in_flight is None
    text = (
        "vllm:num_requests_running -1\nvllm:num_requests_waiting NaN\nvllm:kv_cache_usage_perc +Inf\n"
        'vllm:cache_config_info{block_size="0",num_gpu_blocks="None"} 1\n'
    )
    assert load(parse(text), vllm) == Load()


def test_an_engine_whose_series_begin_with_the_first_request_was_never_asked_while_it_has_none() -> None:
    tgi = TRAITS[Runtime.TGI].names
    assert load(parse("", tgi.load_prefixes()), tgi) == Load(running=0, waiting=0)
    used = parse("tgi_request_success 3\n", tgi.load_prefixes())
    assert load(used, tgi) == Load()
    assert load(parse("tgi_queue_size 0\n"), tgi) == Load(waiting=0)


def test_one_negative_series_makes_the_sum_unusable() -> None:
    text = 'vllm:num_requests_running{engine="0"} 5\nvllm:num_requests_running{engine="1"} -1\n'
    assert load(parse(text), TRAITS[Runtime.VLLM].names).running is None


def test_a_custom_engine_is_read_by_its_users_names() -> None:
    text = "llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\nllamacpp:kv_cache_usage_ratio 0.5\n"
    place = custom_place(
        port=8080, path="/m", running="llamacpp:requests_processing", waiting="llamacpp:requests_deferred",
        kv_usage="llamacpp:kv_cache_usage_ratio",
    )  # fmt: skip
    told = load(parse(text, place.names.load_prefixes()), place.names)
    assert (told.in_flight, told.kv_usage, told.blocks_total) == (3, 0.5, None)
    assert latencies(parse(text), place.names, restarts=0).ended is None


def test_a_sum_that_no_number_holds_is_missing() -> None:
    told = parse('vllm:num_requests_running{engine="0"} 1e308\nvllm:num_requests_running{engine="1"} 1e308\n')
    assert load(told, TRAITS[Runtime.VLLM].names).running is None
