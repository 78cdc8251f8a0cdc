"""The dashboard's queries on a real Prometheus: all of them run, and the totals are what was counted."""

import json
import math
import socket
import time
from collections.abc import Iterator

import pytest

from dashboards.files import FOLDER
from dashboards.queries import PanelQuery, queries, resolved
from pagefleet_api.metrics import ENGINE, OPERATOR, Engine, Kind, Metric, Operator
from tests.dashboards.fleet_rig import SCRAPE_S, FakePod, Prometheus

pytestmark = pytest.mark.apiserver

QUERIES = tuple(queries(json.loads((FOLDER / "fleet.json").read_text())))
TOTALS = {query.panel: query for query in QUERIES if query.row == "Totals over the shown range"}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    server = Prometheus(tmp_path_factory.mktemp("prometheus"), port)
    try:
        server.wait_until(lambda: server.query("vector(1)") != [], "Prometheus does not start")
        yield server
    finally:
        server.stop()


@pytest.fixture
def pods() -> Iterator[dict[str, FakePod]]:
    made = {name: FakePod(name, ENGINE) for name in ("a", "b", "c")} | {"operator": FakePod("operator", OPERATOR)}
    yield made
    for fake in made.values():
        fake.stop()


def _serve(fake: FakePod, requests: int, outcome: str = "stop") -> None:
    fake.process.add(Engine.REQUESTS, requests, outcome=outcome)
    fake.process.add(Engine.PROMPT_TOKENS, 100 * requests)
    fake.process.add(Engine.GENERATION_TOKENS, 10 * requests)


def _seen(prometheus: Prometheus, fake: FakePod, requests: int) -> None:
    """Wait until a scrape has what `fake` counts now."""
    expr = f'sum({Engine.REQUESTS.name}{{pod="{fake.name}"}})'
    prometheus.wait_until(lambda: prometheus.value(expr) == requests, f"{fake.name} never had {requests}")


def _total(prometheus: Prometheus, panel: str, since_s: float, now_s: float) -> float | None:
    expr = resolved(TOTALS[panel].expr, range_s=now_s - since_s, step_s=SCRAPE_S, namespace="team", service="llama")
    return prometheus.value(expr, now_s)


def _begin(prometheus: Prometheus, pods: dict[str, FakePod]) -> float:
    """Two pods that serve, one of them with a past; the Unix time at which the shown range begins."""
    a, b, c, operator = pods.values()
    operator.process.add(Operator.LEADER, 1)
    c.failing = True  # not born yet
    prometheus.scrape([a, b, c], operator)
    _seen(prometheus, a, 0)
    _serve(a, 7, "error")
    _seen(prometheus, a, 7)
    _seen(prometheus, b, 0)
    time.sleep(3 * SCRAPE_S)
    return time.time()


def _live_through(prometheus: Prometheus, a: FakePod, b: FakePod, c: FakePod, operator: FakePod) -> int:
    """A gap, a restart, a birth and a death under traffic; the requests that were served, 4 of them errors."""
    _serve(a, 5)
    _serve(b, 3, "length")
    _seen(prometheus, a, 12)
    _seen(prometheus, b, 3)
    a.failing = True  # a gap, in which a counts on
    b.restart_container()
    _seen(prometheus, b, 0)
    _serve(b, 4, "error")
    b.process.add(Engine.REJECTIONS, 6)
    _seen(prometheus, b, 4)
    _serve(a, 1, "abort")
    time.sleep(3 * SCRAPE_S)
    a.failing = False
    _serve(c, 2)  # before its first scrape
    c.failing = False
    _seen(prometheus, c, 2)
    _seen(prometheus, a, 13)
    prometheus.scrape([a, c], operator)  # b goes
    prometheus.wait_until(lambda: not prometheus.query(f'{Engine.REQUESTS.name}{{pod="b"}}'), "b stays")
    _serve(c, 8)
    _seen(prometheus, c, 10)
    return 5 + 3 + 4 + 1 + 2 + 8


def test_totals_are_what_the_pods_counted_while_they_come_restart_fail_and_go(
    prometheus: Prometheus, pods: dict[str, FakePod]
) -> None:
    since_s = _begin(prometheus, pods)
    requests = _live_through(prometheus, *pods.values())
    time.sleep(2 * SCRAPE_S)
    now_s = time.time()
    assert {panel: _total(prometheus, panel, since_s, now_s) for panel in TOTALS} == {
        "Requests": requests,
        "Errors": 4,
        "Rejected": 6,
        "Prompt tokens": 100 * requests,
        "Generated tokens": 10 * requests,
        "Requests cut by drains": 0,
    }
    assert _total(prometheus, "Requests", since_s - 3600, now_s) == requests + 7


def _give(fake: FakePod, families: tuple[Metric, ...], amount: float) -> None:
    for family in families:
        if family.kind is not Kind.GAUGE:
            fake.process.add(family, amount)


def test_every_query_of_the_dashboard_runs_and_has_data_after_some_traffic(
    prometheus: Prometheus, pods: dict[str, FakePod]
) -> None:
    a, _, _, operator = pods.values()
    a.name = "busy"
    operator.process.add(Operator.LEADER, 1)
    operator.process.add(Operator.DESIRED_REPLICAS, 2)
    prometheus.scrape([a], operator)
    _seen(prometheus, a, 0)
    prometheus.wait_until(lambda: prometheus.query(Operator.LEADER.name) != [], "no operator")
    for _ in range(2):
        _give(a, ENGINE, 1)
        _give(operator, OPERATOR, 1)
        time.sleep(3 * SCRAPE_S)
    _seen(prometheus, a, 2)

    def values(query: PanelQuery) -> list[float]:
        expr = resolved(query.expr, range_s=60, step_s=SCRAPE_S, namespace="team", service="llama")
        return [float(series["value"][1]) for series in prometheus.query(expr)]

    found = {(query.panel, query.legend): values(query) for query in QUERIES}
    assert [where for where, numbers in found.items() if not numbers or any(map(math.isnan, numbers))] == []
    assert found["Desired replicas", "__auto"] == [2]
    assert found["Leader", "__auto"] == [1]


def test_a_standby_with_old_numbers_does_not_count(prometheus: Prometheus, pods: dict[str, FakePod]) -> None:
    operator = pods["operator"]
    operator.process.add(Operator.LEADER, 0)
    operator.process.add(Operator.DESIRED_REPLICAS, 9)
    prometheus.scrape([], operator)
    prometheus.wait_until(lambda: prometheus.value(f"max({Operator.DESIRED_REPLICAS.name})") == 9, "no operator")
    (desired,) = [query for query in QUERIES if query.panel == "Desired replicas"]
    assert prometheus.query(resolved(desired.expr, range_s=60)) == []


def test_a_service_that_is_not_there_looks_absent(prometheus: Prometheus) -> None:
    for query in QUERIES:
        if query.panel not in {"Leader", "Decision time", "Reconcile time"}:
            assert prometheus.query(resolved(query.expr, range_s=60, service="nobody")) == [], query.panel
