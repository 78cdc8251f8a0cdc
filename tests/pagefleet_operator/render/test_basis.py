"""What pods are made from while something is missing."""

from typing import Any

import pytest

from pagefleet_api.reasons import Reason
from pagefleet_api.service import InferenceService
from pagefleet_operator import render
from pagefleet_operator.autoscaling.values import Verdict
from pagefleet_operator.kinds import JOB
from pagefleet_operator.reconciling.basis import Basis, made_from
from pagefleet_operator.supplies import Delete, Lack, Stays, Supply, refused, untried

OLD, NEW = {"uri": "pkg://old"}, {"uri": "pkg://new"}
ENGINE = {"device": "cpu", "kvCache": {"size": "64Mi"}}


def service(model: dict[str, Any], **engine: Any) -> InferenceService:
    meta = {"namespace": "n", "name": "s", "uid": "u", "generation": 2}
    return InferenceService.parse({"metadata": meta, "spec": {"model": model, "engine": {**ENGINE, **engine}}})


def rolled_out(model: dict[str, Any] = OLD, replicas: int = 2) -> dict[str, Any]:
    choices = render.Choices(
        replicas=replicas, wanted=replicas, image="e", fetch_image="f", max_surge=1, max_unavailable=0
    )
    return next(one for one in render.manifests(service(model), choices) if one["kind"] == "Deployment")


def lacks(stays: Stays) -> Supply:
    return Supply(Lack(stays, Verdict(False, Reason.STARTING, "words")))


def basis(*stays: Stays, of: InferenceService | None = None, live: dict[str, Any] | None = None) -> Basis:
    return made_from(of or service(NEW), live, [lacks(each) for each in stays])


def test_with_all_there_the_spec_is_what_pods_are_made_from() -> None:
    found = made_from(service(NEW), rolled_out(), [Supply(), Supply()])
    assert found == Basis(service(NEW))
    assert found.pods(3) == 3


@pytest.mark.parametrize("stays", [Stays.NOTHING, Stays.MODEL])
@pytest.mark.parametrize("live", [None, rolled_out(replicas=0)])
def test_first_pods_wait_for_whatever_is_missing(stays: Stays, live: dict[str, Any] | None) -> None:
    found = basis(stays, live=live)
    assert (found.service, found.pods(3), found.untouched) == (service(NEW), 0, False)


def test_pods_keep_their_model_until_the_next_one_is_there() -> None:
    found = basis(Stays.MODEL, live=rolled_out())
    assert (found.service.spec.model.uri, found.pods(3)) == ("pkg://old", 3)


def test_pods_stay_where_their_model_is_until_it_is_where_they_are_to_go() -> None:
    elsewhere = service(OLD, maxNumSeqs=3)
    template = {"spec": {"nodeSelector": {"zone": "z"}}}
    elsewhere = elsewhere.model_copy(update={"spec": elsewhere.spec.model_copy(update={"pod_template": template})})
    held = basis(Stays.PLACE, of=elsewhere, live=rolled_out())
    assert (held.service.spec.pod_template, held.service.spec.engine) == (None, service(OLD).spec.engine)
    assert basis(Stays.MODEL, of=elsewhere, live=rolled_out()).service == elsewhere
    assert basis(Stays.PLACE, live=rolled_out()).service.spec.model.uri == "pkg://old"
    changed = service(OLD, maxNumSeqs=3)
    assert basis(Stays.PLACE, of=changed, live=rolled_out()).service == changed, "whatever else changes, follows"


def test_what_is_missing_for_a_model_that_pods_have_holds_no_other_change_back() -> None:
    changed = service(OLD, maxNumSeqs=3)
    assert basis(Stays.MODEL, of=changed, live=rolled_out()).service == changed


def test_what_shows_only_in_pods_holds_none_of_them_back() -> None:
    assert basis(Stays.NOTHING, live=rolled_out()) == Basis(service(NEW), basis(Stays.NOTHING).lacks)


def test_a_spec_of_which_no_pod_may_be_made_changes_nothing_of_those_that_are_there() -> None:
    changed = service(OLD, maxNumSeqs=3)
    found = basis(Stays.MODEL, Stays.ALL, of=changed, live=rolled_out())
    assert found.service.spec.engine == service(OLD).spec.engine
    assert not found.untouched
    assert basis(Stays.ALL, live={"spec": {"replicas": 1}}).untouched, "nobody knows what they were made of"
    assert basis(Stays.ALL).untouched


def test_urgent_lacks_come_first_and_writes_stay_in_order() -> None:
    writes = [Delete(JOB, {"metadata": {"name": name}}) for name in "ab"]
    cached = Verdict(True, Reason.CACHED, "there")
    supplies = [Supply(untried(), writes=(writes[0],)), Supply(refused("no"), cached, (writes[1],))]
    found = made_from(service(NEW), None, supplies)
    assert [lack.urgent for lack in found.lacks] == [True, False]
    assert (found.cached, found.writes) == (cached, tuple(writes))
