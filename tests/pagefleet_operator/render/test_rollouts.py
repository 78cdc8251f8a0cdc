"""The Deployment of a pass as a whole: a template's digest, a trial's annotation, an earlier template that stays."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from pagefleet_api import labels
from pagefleet_api.reasons import Reason
from pagefleet_api.service import InferenceService
from pagefleet_operator import render
from pagefleet_operator.facts.observed import ChildKey, DeploymentView, Generation, Observed
from pagefleet_operator.facts.trials import Phase, Trial
from pagefleet_operator.plan.replicas import ReplicaPlan
from pagefleet_operator.reconciling.rollouts import Images, choose
from tests.pagefleet_operator.plan.build import NOW, pod

EARLIER = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}


def service(**engine: Any) -> InferenceService:
    spec = {
        "model": {"uri": "pkg://m"},
        "engine": {"device": "cpu", "kvCache": {"size": "64Mi"}, **engine},
        "rollout": {"analysis": {}},
    }
    return InferenceService.parse({"metadata": {"name": "s", "namespace": "n", "uid": "u"}, "spec": spec})


def deployment(asked: InferenceService, observed: Observed) -> dict[str, Any]:
    chosen = choose(asked, observed, 3, ReplicaPlan(4), NOW, images=Images("engine:1", "fetch:1"), start={})
    found = render.manifests(asked, chosen.choices)[-1]
    assert found["kind"] == "Deployment"
    return found


def seen(template: str | None, trial: Trial | None, *generations: Generation) -> Observed:
    view = DeploymentView(name="s", revision=2, template=template, trial=trial, total=4, updated=1)
    pods = (pod("x"), pod("new", template_hash="two", ready=trial is None))
    return Observed(deployment=view, pods=pods, generations=generations)


def digest_of(found: dict[str, Any]) -> str:
    return str(found["metadata"]["annotations"][labels.TEMPLATE])


ONE, TWO = Generation("d", "one", 1, EARLIER), Generation("d", "two", 2, {})
FIRST = deployment(service(), Observed())
TRIAL = Trial(phase=Phase.MEASURING, since=NOW.wall - timedelta(seconds=9), stable="one", pods=1)


def test_a_template_has_a_digest_that_nothing_but_the_template_changes() -> None:
    scaled = deployment(service().model_copy(update={"generation": 9}), Observed())
    assert digest_of(scaled) == digest_of(FIRST)
    assert digest_of(deployment(service(maxNumSeqs=9), Observed())) != digest_of(FIRST)
    assert labels.TRIAL not in FIRST["metadata"]["annotations"]
    assert not {"paused", "minReadySeconds"} & set(FIRST["spec"])
    assert FIRST["spec"]["replicas"] == 4


def test_a_comparison_holds_the_deployment_and_counts_its_pods_on_top() -> None:
    found = deployment(service(), seen(digest_of(FIRST), TRIAL, ONE, TWO))
    assert Trial.parse(found["metadata"]["annotations"][labels.TRIAL]) == TRIAL
    assert (found["spec"]["paused"], found["spec"]["replicas"], found["spec"]["minReadySeconds"]) == (True, 5, 600)
    assert found["spec"]["template"] == FIRST["spec"]["template"]


def test_what_was_taken_back_stays_at_the_earlier_template_and_remembers_what_was_asked_for() -> None:
    back = replace(TRIAL, phase=Phase.ROLLED_BACK, reason=Reason.SLO_REGRESSION)
    found = deployment(service(), seen(digest_of(FIRST), back, ONE, TWO))
    assert found["spec"]["template"] == EARLIER
    assert digest_of(found) == digest_of(FIRST)
    assert "paused" not in found["spec"]


def test_while_the_earlier_replica_set_is_missing_the_deployment_stays_as_it_is() -> None:
    observed = seen(digest_of(FIRST), replace(TRIAL, phase=Phase.ROLLED_BACK))
    live = {**FIRST, "spec": {**FIRST["spec"], "template": EARLIER}}
    kept = deployment(service(), replace(observed, children={ChildKey("Deployment", "s"): live}))
    assert kept["spec"]["template"] == EARLIER
    assert deployment(service(), observed)["spec"]["template"] == FIRST["spec"]["template"]
