"""Short ways to write observed pods down in plan tests."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pagefleet_api.load import EngineState, Load
from pagefleet_operator.facts.observed import DeploymentView, Now, Observed, Pod, Sample

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> Now:
    """The time `seconds` after the tests' start."""
    return Now(START + timedelta(seconds=seconds), 1000.0 + seconds)


NOW = at(0)


def load(running: int = 0, state: EngineState = EngineState.READY) -> Load:
    """An engine's answer."""
    return Load(
        state=state,
        running=running,
        waiting=0,
        max_num_seqs=8,
        block_size=16,
        blocks_used=0,
        blocks_total=100,
        queued_prompt_tokens=0,
        seconds_since_last_step=0,
    )


def sample(
    running: int = 0, state: EngineState = EngineState.READY, *, age_s: float = 0.5, restarts: int = 0
) -> Sample:
    """An answer of `age_s` ago."""
    return Sample(load(running, state), NOW.monotonic_s - age_s, restarts)


def pod(name: str, **changes: Any) -> Pod:
    """A ready pod that serves; its uid is its name. One that has started runs."""
    base = Pod(name=name, uid=name, created=START - timedelta(hours=1), ready=True, started=True, template_hash="one")
    return replace(base, **{"running": changes.get("started", True), **changes})


def drained(name: str, since_s: float = 10.0, **changes: Any) -> Pod:
    """A pod that has been draining for `since_s`."""
    given = {
        "ready": False,
        "serving": False,
        "deletion_cost": -1000,
        "drain_started": NOW.wall - timedelta(seconds=since_s),
    }
    return pod(name, **{**given, **changes})


def observed(*pods: Pod, replicas: int | None = None, rollout: bool = False, **samples: Sample) -> Observed:
    """These pods and samples (by pod name) under a Deployment with that number."""
    number = len(pods) if replicas is None else replicas
    view = DeploymentView(name="d", replicas=number, total=len(pods), updated=0 if rollout else len(pods))
    return Observed(deployment=view, pods=pods, samples=samples)
