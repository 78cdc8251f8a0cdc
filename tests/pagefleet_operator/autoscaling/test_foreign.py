"""Fleets of engines that tell less than ours: what is never told is not missing, and has no say."""

from typing import Any

import pytest

from pagefleet_api.load import Load
from pagefleet_api.runtimes import UNTOLD, Runtime
from pagefleet_api.service import InferenceService, InvalidService
from pagefleet_operator.autoscaling import Fleet, PodLoad, Policy
from pagefleet_operator.autoscaling.readings import read
from tests.pagefleet_api.test_runtimes import engine
from tests.pagefleet_operator.autoscaling.build import decide


def service(runtime: Runtime, scaling: dict[str, Any] | None = None, **fields: Any) -> InferenceService:
    spec = {
        "model": {"uri": "file:///m"},
        "engine": engine(runtime, **fields),
        "autoscaling": {"maxReplicas": 6, **(scaling or {})},
    }
    return InferenceService.parse({"metadata": {"namespace": "n", "name": "s", "uid": "u"}, "spec": spec})


def policy(runtime: Runtime, scaling: dict[str, Any] | None = None, **fields: Any) -> Policy:
    found = Policy.of(service(runtime, scaling, **fields))
    assert found is not None
    return found


def pods(*loads: Load) -> Fleet:
    return Fleet(len(loads), tuple(PodLoad("p", True, True, load, 1.0) for load in loads))


def test_an_engine_that_never_tells_its_cache_scales_by_its_requests_up_and_down() -> None:
    tgi = policy(Runtime.TGI)
    assert (tgi.tells_kv, tgi.kv_target, tgi.waiting_target) == (False, None, 4)
    idle, busy = Load(running=0, waiting=0), Load(running=100, waiting=30)
    assert read(pods(idle), tgi).complete
    assert decide(pods(busy, idle), tgi).desired == 6
    assert decide(pods(idle, idle, idle), tgi).desired == 1


def test_an_engine_that_does_not_tell_it_this_time_holds_the_number() -> None:
    vllm = policy(Runtime.VLLM)
    half = Load(running=0, waiting=0)
    assert not read(pods(half), vllm).complete
    assert decide(pods(half, half), vllm).desired == 2
    whole = Load(running=0, waiting=0, kv_share=0.0)
    assert decide(pods(whole, whole), vllm).desired == 1


def test_a_queue_without_a_known_limit_may_have_any_length() -> None:
    long = Load(running=200, waiting=50_000, kv_share=1.0)
    assert read(pods(long), policy(Runtime.SGLANG)).waiting.known == 50_000
    assert read(pods(long), policy(Runtime.SGLANG, maxQueuedRequests=100)).waiting.missing == 1


def test_a_custom_engine_tells_its_cache_where_its_user_names_the_series() -> None:
    named = {"running": "r", "waiting": "w"}
    assert not policy(Runtime.CUSTOM, custom={"metrics": named}).tells_kv
    assert policy(Runtime.CUSTOM, custom={"metrics": {**named, "kvUsage": "k"}}).tells_kv
    assert not policy(Runtime.CUSTOM).tells_kv


@pytest.mark.parametrize(
    ("runtime", "kind"),
    [(Runtime.TGI, "KVCacheUsage"), (Runtime.VLLM, "KVCacheDemand"), (Runtime.CUSTOM, "KVCacheDemand")],
)
def test_a_metric_that_the_engine_never_tells_is_refused(runtime: Runtime, kind: str) -> None:
    chosen = {"metrics": [{"type": kind, "target": {"averageUtilization": 75}}]}
    with pytest.raises(InvalidService, match=f"{kind} is not told by engine.runtime {runtime}; use WaitingRequests"):
        service(runtime, chosen)
    assert Runtime.PAGEFLEET not in UNTOLD[kind]
