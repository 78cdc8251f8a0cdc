"""The operator's port and its metrics."""

from collections.abc import AsyncIterator, Sequence

import aiohttp
import pytest

from pagefleet_api.explanation import Explanation, NextSteps, Threshold
from pagefleet_api.metrics import OPERATOR, Kind, Operator
from pagefleet_api.status import Decision
from pagefleet_operator.metrics import Metrics
from pagefleet_operator.server import Check, Views, serve
from pagefleet_operator.settings import Address

_DECISION = Decision(
    time="2026-01-01T00:00:00Z",
    before=1,
    desired=3,
    reason="ScaledUp",
    message="m",
    pods_seen=1,
    pods_missing=0,
    clamps=("bounds: 3",),
)

_NEXT = NextSteps(
    up=(Threshold(type="WaitingRequests", demand=3, limit=8.8),),
    down_held_by=("minReplicas is 1",),
    down_after_seconds=7,
)
_EXPLANATION = Explanation(namespace="n", name="s", decisions=(_DECISION,), next_steps=_NEXT)


class Port:
    """A served port whose views a test sets."""

    def __init__(self) -> None:
        self.checks: Sequence[Check] = (Check("loop", True, "fine"),)
        self.metrics = Metrics()
        self.url = ""
        self.leads = True
        self.leader: str | None = None

    def explanation(self, namespace: str, name: str) -> Explanation | None:
        return _EXPLANATION if (namespace, name) == ("n", "s") else None

    async def get(self, path: str) -> tuple[int, str, str]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}{path}") as answer:
            return answer.status, await answer.text(), answer.headers["Content-Type"]


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    made = Port()
    views = Views(
        lambda: made.checks,
        lambda: made.checks,
        made.metrics.exposition,
        made.explanation,
        lambda: made.leads,
        lambda: made.leader,
    )
    runner = await serve(views, Address("127.0.0.1", 0))
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_probes_answer_200_while_all_is_well_and_503_with_the_cause_otherwise(port: Port, path: str) -> None:
    assert (await port.get(path))[0] == 200
    port.checks = (Check("loop", True, "fine"), Check("watch", False, "too old"))
    status, text, _ = await port.get(path)
    assert status == 503
    assert "too old" in text


async def test_metrics_are_plain_text_whatever_the_scraper_asks_for(port: Port) -> None:
    status, text, kind = await port.get("/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "# TYPE pagefleet_leader gauge" in text


async def test_decisions_of_a_service_are_its_trail(port: Port) -> None:
    status, text, _ = await port.get("/decisions?namespace=n&name=s")
    assert status == 200
    assert Explanation.model_validate_json(text) == _EXPLANATION
    assert (await port.get("/decisions?namespace=n&name=other"))[0] == 404
    assert (await port.get("/decisions"))[0] == 400


@pytest.mark.parametrize(("leader", "words"), [("operator-1", "operator-1"), (None, "no replica leads")])
async def test_a_standby_names_who_has_the_decisions(port: Port, leader: str | None, words: str) -> None:
    port.leads, port.leader = False, leader
    status, text, _ = await port.get("/decisions?namespace=n&name=s")
    assert status == 503
    assert words in text


def test_every_family_of_the_contract_is_exported_under_its_name_and_kind() -> None:
    metrics = Metrics()
    metrics.begin("x", "x")
    for metric in OPERATOR:
        words = tuple("x" for _ in metric.labels)
        if metric.kind is Kind.GAUGE:
            metrics.set(metric, 1, *words)
        elif metric.kind is Kind.COUNTER:
            metrics.add(metric, *words)
        else:
            metrics.observe(metric, 0.5, *words)
    lines = metrics.exposition().decode().splitlines()
    names = {line.partition("{")[0].partition(" ")[0] for line in lines if not line.startswith("#")}
    assert names == {name for metric in OPERATOR for name in metric.series}


def test_the_series_of_a_service_that_is_gone_are_gone() -> None:
    metrics = Metrics()
    metrics.begin("n", "s")
    metrics.begin("n", "other")
    metrics.set(Operator.DESIRED_REPLICAS, 2, "n", "s")
    metrics.add(Operator.SCALE_EVENTS, "n", "s", "up", "spec")
    metrics.set(Operator.DESIRED_REPLICAS, 2, "n", "other")
    metrics.forget("n", "s")
    metrics.forget("n", "unknown")
    text = metrics.exposition().decode()
    assert 'inference_service="s"' not in text
    assert 'inference_service="other"' in text


def test_an_absent_value_is_an_absent_series() -> None:
    metrics = Metrics()
    metrics.begin("n", "s")
    metrics.set(Operator.METRICS_AGE, 2, "n", "s")
    metrics.set(Operator.METRICS_AGE, None, "n", "s")
    metrics.set(Operator.METRICS_AGE, None, "n", "s")
    assert "pagefleet_metrics_age_seconds{" not in metrics.exposition().decode()


def test_what_is_counted_for_a_service_starts_at_zero_and_is_not_reset() -> None:
    metrics = Metrics()
    metrics.begin("n", "s")
    metrics.add(Operator.DRAIN_ABORTED, "n", "s", amount=2)
    metrics.begin("n", "s")
    lines = metrics.exposition().decode().splitlines()
    place = 'inference_namespace="n",inference_service="s"'
    assert f"pagefleet_drain_aborted_requests_total{{{place}}} 2.0" in lines
    assert f"pagefleet_drain_seconds_count{{{place}}} 0.0" in lines
    for direction in ("up", "down"):
        for driver in ("spec", "autoscaler"):
            words = f'direction="{direction}",driver="{driver}",{place}'
            assert any(
                line.startswith("pagefleet_scale_events_total")
                and line.endswith(" 0.0")
                and all(word in line for word in words.split(","))
                for line in lines
            )
    assert sum(line.startswith("pagefleet_scrape_errors_total{") for line in lines) >= 5


def test_nothing_is_exported_of_a_service_that_was_let_go_in_the_middle_of_a_pass() -> None:
    metrics = Metrics()
    metrics.begin("n", "s")
    metrics.forget("n", "s")
    metrics.set(Operator.DESIRED_REPLICAS, 2, "n", "s")
    metrics.add(Operator.DRAIN_ABORTED, "n", "s")
    metrics.observe(Operator.DRAIN, 2.0, "n", "s")
    assert 'inference_service="s"' not in metrics.exposition().decode()
