"""The steps of the demo, in the order in which they run."""

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from e2e import release, timeline
from e2e.answers import Answer, Summary, summary
from e2e.exchange import Target
from e2e.kubectl import Json, Watch
from e2e.load import Load, LoadPlan, numbered
from e2e.progress import Progress, Say
from e2e.prometheus import Prometheus
from e2e.service import KIND, Service, condition, is_ready
from e2e.sites import ImageNames, Site, state_folder

CLIENTS = 20
SETTLED_REPLICAS = 3
HELD_S = 20.0
ANSWER_TOKENS = 48
READY_TIMEOUT_S = 180.0
SCALE_TIMEOUT_S = 180.0
LET_IN_S = 20.0
SCRAPE_INTERVAL_S = 2
QUESTION = "What is the capital of France? Answer in one sentence."


class DemoError(Exception):
    """The demo ran and did not show what it promises."""


def start_prometheus(place: Site, progress: Progress) -> Prometheus | None:
    """A Prometheus on this machine; None where this machine does not reach the pods."""
    if not place.local:
        return None
    prometheus = Prometheus(state_folder() / "prometheus")
    with progress.step("Prometheus"):
        prometheus.start(Path(place.kubectl.kubeconfig), SCRAPE_INTERVAL_S)
    return prometheus


def install_chart(place: Site, names: ImageNames, progress: Progress) -> None:
    with progress.step("Helm installs the chart"):
        release.install(place, names)


def forget_old_engines(place: Site, names: ImageNames, progress: Progress) -> None:
    """A service keeps the image that it was made with: one of an earlier demo goes when the engine was built anew."""
    note = engine_note()
    if note.exists() and note.read_text() != names.engine_digest:
        with progress.step("the engine has changed: earlier services go"):
            place.kubectl.run("delete", KIND, "smollm2", "autoscaled", "--ignore-not-found", timeout_s=180)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(names.engine_digest)


def engine_note() -> Path:
    """Where the digest of the engine image of the running demo is kept."""
    return state_folder() / "demo-engine"


def serve_one(place: Site, progress: Progress) -> None:
    """One replica, and an answer from it, token by token."""
    service = Service(place.kubectl, "smollm2")
    with progress.step("kubectl apply -f examples/smollm2.yaml, until Ready") as say:
        service.kubectl.apply(release.example("smollm2.yaml"))
        _until_ready(service, say)
    endpoint = place.endpoint(service)
    try:
        progress.line(f"> {QUESTION}", style="bold")
        for piece in chat(endpoint.url(), service.name, QUESTION):
            progress.piece(piece)
        progress.piece("\n")
    finally:
        endpoint.close()


def chat(url: str, model: str, question: str) -> Iterator[str]:
    """The pieces of a streamed chat answer; OSError when the server refuses."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 64,
        "temperature": 0,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with _opened(request) as response:
        for line in response:
            data = line.strip().removeprefix(b"data:").strip()
            if data and data != b"[DONE]":
                for choice in json.loads(data).get("choices", ()):
                    yield choice.get("delta", {}).get("content") or ""


def _opened(request: urllib.request.Request) -> http.client.HTTPResponse:
    """The answer, once it is let in: kube-proxy learns of a ready pod later than the status does."""
    until_s = time.monotonic() + LET_IN_S
    while True:
        try:
            response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=60)
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError) or time.monotonic() > until_s:
                raise
            time.sleep(0.2)
        else:
            return response


def autoscale(place: Site, progress: Progress) -> None:
    """Steady load until the autoscaler settles, then none; and what it did, with its reasons."""
    service = Service(place.kubectl, "autoscaled")
    with progress.step("kubectl apply -f examples/autoscaled.yaml, until Ready") as say:
        service.kubectl.apply(release.example("autoscaled.yaml"))
        _until_ready(service, say)
    started_s = time.time()
    endpoint = place.endpoint(service)
    try:
        with service.watch() as watch:
            target = Target(url=endpoint.url, model=service.model)
            began_s = time.time()
            answers = _load_until_settled(target, watch, progress)
            ended_s = time.time()
            with progress.step("no load: back to 1") as say:
                _settle(watch, 1, 0.0, say)
            seen = watch.seen
    finally:
        endpoint.close()
    entries = [*timeline.changes(seen), *timeline.decisions(seen), *timeline.events(service.events())]
    entries.append(
        timeline.Entry(began_s, "load begins", why=f"{CLIENTS} clients ask, one question after another each")
    )
    entries.append(timeline.Entry(ended_s, "load ends", why="the last client has its last answer"))
    timeline.show(progress.console, entries, started_s)
    progress.line(f"The clients saw: {answers}")
    progress.line("(The longest waits are those of the first clients, while one pod answered all of them.)")


def _check(answers: Sequence[Answer]) -> None:
    for answer in answers:
        if answer.fault is not None:
            raise DemoError(f"request {answer.number} was not answered in full: {answer.fault} {answer.detail}")


def _load_until_settled(target: Target, watch: Watch, progress: Progress) -> Summary:
    with Load.start(LoadPlan(target=target, ask=numbered(ANSWER_TOKENS), clients=CLIENTS)) as load:
        with progress.step(f"{CLIENTS} steady clients, until {SETTLED_REPLICAS} replicas hold") as say:
            _settle(watch, SETTLED_REPLICAS, HELD_S, say, load)
        with progress.step("the clients get their last answers"):
            answers = load.wait()
        _check(answers)
        return summary(answers)


def _settle(watch: Watch, replicas: int, held_s: float, say: Say, load: Load | None = None) -> None:
    """Wait until the service has so many ready replicas, wants as many, and both held for `held_s`.

    Raises:
        TimeoutError: with the last decision's words.
        DemoError: a request of `load` was not answered.
    """
    deadline_s, since_s, told = time.monotonic() + SCALE_TIMEOUT_S, None, ""
    while since_s is None or time.monotonic() - since_s < held_s:
        body = watch.seen[-1].body if watch.seen else {"metadata": {"generation": 0}}
        if (words := _in_words(body)) != told:
            say(words)
            told = words
        settled = is_ready(body, replicas)
        since_s = (since_s or time.monotonic()) if settled and _desired(body) == replicas else None
        if load is not None:
            _check(load.answers)
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not at {replicas} replicas after {SCALE_TIMEOUT_S:.0f} s: {words}")
        time.sleep(0.2)


def _desired(body: Json) -> int | None:
    desired: int | None = body.get("status", {}).get("autoscaling", {}).get("desiredReplicas")
    return desired


def _in_words(body: Json) -> str:
    status = body.get("status", {})
    ready = condition(body, "Ready") or {}
    scaling = status.get("autoscaling", {})
    draining = status.get("drainingReplicas", 0)
    words = [
        f"ready {status.get('ready', '0')}" + (f", {draining} draining" if draining else ""),
        status.get("targets") or "",
        (scaling.get("lastDecision") or {}).get("message", ""),
        "" if ready.get("status") == "True" else f"{ready.get('reason', '')}: {ready.get('message', '')}".strip(": "),
    ]
    return "; ".join(word for word in words if word)


def _until_ready(service: Service, say: Say) -> None:
    """Wait for one ready replica or more, and tell each phase on the way."""
    deadline_s, told = time.monotonic() + READY_TIMEOUT_S, ""
    with service.watch() as watch:
        while not (watch.seen and is_ready(watch.seen[-1].body)):
            words = _in_words(watch.seen[-1].body) if watch.seen else "asked for"
            if words != told:
                say(words)
                told = words
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{service.name} is not ready after {READY_TIMEOUT_S:.0f} s: {words}")
            time.sleep(0.2)


def tell_what_next(place: Site, prometheus: Prometheus | None, progress: Progress) -> None:
    """How to talk to what runs now."""
    service = Service(place.kubectl, "smollm2")
    url = service.cluster_url() if place.local else "http://localhost:8080/v1"
    forward = "kubectl port-forward svc/smollm2 8080:80"
    reach = "" if place.local else f"\n  {forward} &"
    elsewhere = (
        f"(From elsewhere than this machine, or after the service was made anew: {forward},\n"
        "then http://localhost:8080/v1 in place of that address.)\n"
        if place.local
        else ""
    )
    question = (
        '{"model": "smollm2", "stream": true, "temperature": 0, "messages": [{"role": "user", "content": "Hello"}]}'
    )
    metrics = (
        "Prometheus: see docs/monitoring.md for the scrape configuration of your own."
        if prometheus is None
        else f"Prometheus: {prometheus.url}"
    )
    progress.line(f"""
It goes on running. Talk to it:
  eval "$(.venv/bin/python -m e2e.demo env)"{reach}
  curl -N {url}/chat/completions -H 'Content-Type: application/json' -d '{question}'
  kubectl get infs
  kubectl describe infs autoscaled
  .venv/bin/python -m e2e.load --url {url} --model smollm2 --clients 4 --seconds 20
{elsewhere}{metrics}
Grafana: import dashboards/fleet.json and choose that Prometheus.
Stop it: make demo-stop""")
