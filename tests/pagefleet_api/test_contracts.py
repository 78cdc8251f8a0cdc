from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pagefleet_api import labels, quantity
from pagefleet_api.load import EngineState, LoadReport
from pagefleet_api.metrics import ENGINE, OPERATOR, Engine, Kind
from pagefleet_api.sizing import KvShape, blocks_for
from pagefleet_api.vllm_names import VLLM_ALIASES


def test_a_7b_model_keeps_2_gib_for_4096_tokens_and_grouped_heads_a_quarter() -> None:
    every_head = KvShape(layers=32, kv_heads=32, head_size=128, element_bytes=2)
    assert every_head.bytes_for(4096) == 2 * 2**30
    grouped = KvShape(layers=32, kv_heads=8, head_size=128, element_bytes=2)
    assert grouped.bytes_for(4096) == 2**30 // 2
    assert grouped.bytes_per_block == 16 * grouped.bytes_per_token
    assert grouped.blocks_in(grouped.bytes_per_block * 3 - 1) == 2


@given(st.integers(0, 10**6))
def test_blocks_hold_the_tokens_and_no_block_is_spare(tokens: int) -> None:
    assert blocks_for(tokens) * 16 >= tokens > (blocks_for(tokens) - 1) * 16 or tokens == 0 == blocks_for(tokens)


@pytest.mark.parametrize(
    ("text", "value"),
    [("512Mi", 512 * 2**20), ("2G", 2 * 10**9), ("0.5", Decimal("0.5")), ("100m", Decimal("0.1")), ("2e3", 2000),
     ("1E", 10**18), ("1Ei", 2**60), ("+4", 4), ("3E2", 300), (".5", Decimal("0.5")), ("5.", 5)],
)  # fmt: skip
def test_a_quantity_means_what_kubernetes_says(text: str, value: int | Decimal) -> None:
    assert quantity.parse(text) == value


@pytest.mark.parametrize(
    "text", ["", "lots", "-1", "1 Mi", "1mi", "Mi", "1.2.3", "1e", "0x10", "512Mi\n", "1e9999999", "1" * 40]
)
def test_what_is_no_quantity_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="512Mi") as refusal:
        quantity.parse(text)
    assert repr(text) in str(refusal.value)


names = st.from_regex(r"\A[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?){0,3}\Z")


@given(names)
def test_a_child_name_is_a_valid_service_name(name: str) -> None:
    child = labels.child_name(name)
    assert len(child) <= 63
    assert child[0].isalpha()
    assert child[-1].isalnum()
    assert "." not in child


@given(names, names)
def test_two_services_never_share_a_child_name(one: str, other: str) -> None:
    assert one == other or labels.child_name(one) != labels.child_name(other)


@pytest.mark.parametrize("length", [45, 53, 63, 100])
def test_long_names_that_start_alike_stay_apart(length: int) -> None:
    stem = "m" * (length - 1)
    assert labels.child_name(stem + "a") != labels.child_name(stem + "b")


def test_a_short_name_is_kept() -> None:
    assert labels.child_name("llama-8b") == "llama-8b"
    assert labels.common("llama-8b").items() >= labels.selector("llama-8b").items()


def load(**changes: object) -> LoadReport:
    wire: dict[str, object] = {
        "state": "ready", "running": 8, "waiting": 12, "maxNumSeqs": 8, "blockSize": 16,
        "blocksUsed": 30, "blocksTotal": 40, "queuedPromptTokens": 5, "secondsSinceLastStep": 0.1,
    }  # fmt: skip
    return LoadReport.model_validate(wire | changes)


def test_a_load_report_reads_back() -> None:
    report = load(later="fields are ignored")
    assert report.state is EngineState.READY
    assert report.in_flight == 20
    assert report.kv_usage == 0.75
    assert LoadReport.model_validate_json(report.model_dump_json(by_alias=True)) == report


@pytest.mark.parametrize(
    "changes",
    [
        {"waiting": -1},
        {"waiting": None},
        {"running": 1e308},
        {"blocksTotal": 0},
        {"secondsSinceLastStep": float("nan")},
    ],
)
def test_an_impossible_load_report_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        load(**changes)


def test_each_metric_has_one_name_and_says_what_it_means() -> None:
    families = [*ENGINE, *OPERATOR, *(alias for alias, _ in VLLM_ALIASES)]
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert family.help.endswith("."), family.name
        assert family.name.endswith("_total") == (family.kind is Kind.COUNTER), family.name
        assert bool(family.buckets) == (family.kind is Kind.HISTOGRAM), family.name
        assert list(family.buckets) == sorted(set(family.buckets)), family.name


def test_an_alias_is_the_same_metric_under_another_name() -> None:
    for alias, of in VLLM_ALIASES:
        assert alias.name.startswith("vllm:")
        assert of in ENGINE
        assert (alias.kind, alias.buckets) == (of.kind, of.buckets)
        assert alias.labels[:2] == ("engine", "model_name")


def test_inter_token_buckets_resolve_half_a_millisecond() -> None:
    assert Engine.INTER_TOKEN_LATENCY.buckets[0] == 0.0005
    assert Engine.INTER_TOKEN_LATENCY.series[0] == "pagefleet_inter_token_latency_seconds_bucket"
    assert Engine.REQUESTS_RUNNING.series == ("pagefleet_requests_running",)
