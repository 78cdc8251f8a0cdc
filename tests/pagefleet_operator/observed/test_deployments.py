"""Deployments, their ReplicaSets and a trial's annotation as values."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_api import labels
from pagefleet_api.reasons import Reason
from pagefleet_operator.facts.observed import DeploymentView, Generation
from pagefleet_operator.facts.trials import Phase, Trial

TRIALS = st.builds(
    Trial,
    phase=st.sampled_from(Phase),
    since=st.datetimes(datetime(2026, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
    stable=st.text(max_size=12),
    pods=st.integers(1, 50),
    replaces=st.booleans(),
    reason=st.none() | st.sampled_from([Reason.SLO_REGRESSION, Reason.PROGRESS_DEADLINE_EXCEEDED]),
    words=st.text(max_size=50),
)


@given(TRIALS)
def test_a_trial_is_read_back_as_it_was_written(trial: Trial) -> None:
    assert Trial.parse(trial.text()) == trial


@pytest.mark.parametrize(
    "text", [None, "", "{", "null", "7", "[]", "{}", '{"phase": "Starting", "since": "never"}', "[" * 9000]
)
def test_what_no_operator_wrote_is_no_trial(text: str | None) -> None:
    assert Trial.parse(text) is None


def _measuring(replaces: bool = False) -> Trial:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    return Trial(phase=Phase.MEASURING, since=since, stable="a", pods=2, replaces=replaces)


def _deployment(trial: Trial | None, replicas: int) -> DeploymentView:
    notes = {labels.TEMPLATE: "digest", "deployment.kubernetes.io/revision": "7"}
    if trial is not None:
        notes[labels.TRIAL] = trial.text()
    return DeploymentView.from_object({"metadata": {"annotations": notes}, "spec": {"replicas": replicas}})


def test_pods_on_trial_are_no_part_of_the_number_that_a_deployment_stands_for() -> None:
    view = _deployment(_measuring(), 5)
    assert (view.replicas, view.template, view.revision, view.trial) == (3, "digest", 7, _measuring())
    assert _deployment(_measuring(replaces=True), 5).replicas == 5
    assert _deployment(None, 5).replicas == 5
    assert DeploymentView.from_object({}).revision is None


def test_a_replica_set_keeps_the_template_as_it_was_applied() -> None:
    owners = [{"uid": "other"}, {"uid": "d", "controller": True}]
    meta = {"ownerReferences": owners, "annotations": {"deployment.kubernetes.io/revision": "3"}}
    template: dict[str, Any] = {
        "metadata": {"creationTimestamp": None, "labels": {"a": "b", "pod-template-hash": "h"}},
        "spec": {"containers": []},
    }
    found = Generation.from_object({"metadata": meta, "spec": {"template": template}})
    assert found == Generation("d", "h", 3, {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}})


def test_a_bare_replica_set_is_readable() -> None:
    assert Generation.from_object({"metadata": {}}) == Generation("", "", None, {"metadata": {"labels": {}}})
