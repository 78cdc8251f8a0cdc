"""What the operator makes of an InferenceService, and that it leaves everything else alone."""

import itertools
import time

import pytest
import yaml

from pagefleet_api import labels
from pagefleet_operator.kinds import CHILDREN, GROUP_SET, KEPT, WORKLOADS
from pagefleet_operator.plan.convergence import up_to_date
from tests.pagefleet_operator.apiserver import lws
from tests.pagefleet_operator.apiserver.api import Api, Json, eventually
from tests.pagefleet_operator.apiserver.conftest import Start
from tests.pagefleet_operator.apiserver.fleet import Fleet
from tests.pagefleet_operator.apiserver.operators import EXAMPLES, ROOT, example, service
from tests.pagefleet_operator.golden.__main__ import rendered

pytestmark = pytest.mark.apiserver


def _condition(api: Api, namespace: str, kind: str, name: str = "s") -> Json:
    live = api.get("inferenceservices", namespace, name) or {}
    conditions = live.get("status", {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _is_ready(api: Api, namespace: str, name: str = "s") -> bool:
    return _condition(api, namespace, "Ready", name).get("status") == "True"


def _deployment(api: Api, namespace: str, name: str = "s") -> Json:
    found = api.get("deployments", namespace, name)
    assert found is not None
    return found


def test_a_service_gets_its_children_and_becomes_ready(api: Api, namespace: str, start: Start) -> None:
    start().ready()
    with Fleet(api, namespace):
        api.create("inferenceservices", example("smollm2", namespace))
        eventually(lambda: _is_ready(api, namespace, "smollm2"), "the service is ready")
        for kind in ("deployments", "services", "serviceaccounts"):
            child = api.get(kind, namespace, "smollm2")
            assert child is not None
            (owner,) = child["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["name"], owner["controller"]) == ("InferenceService", "smollm2", True)
        status = (api.get("inferenceservices", namespace, "smollm2") or {})["status"]
        assert status["ready"] == "1/1"
        assert status["url"] == f"http://smollm2.{namespace}.svc/v1"
        assert status["observedGeneration"] == 1


def test_nothing_is_written_while_nothing_changes_whatever_others_have_put_into_the_pods(
    api: Api, namespace: str, start: Start
) -> None:
    operator = start(resync_s=0.5).ready()
    with Fleet(api, namespace):
        api.create("inferenceservices", service(namespace))
        eventually(lambda: _is_ready(api, namespace), "the service is ready")
        notes = {"annotations": {"team.example/note": "kept"}}
        pods = {"metadata": notes, "spec": {"containers": [{"name": "proxy", "image": "proxy:1"}]}}
        path = api.path("deployments", namespace, "s")
        api.call("PATCH", path, {"spec": {"template": pods}}, "application/strategic-merge-patch+json")
        operator.passes_that_write_nothing(3)
        version = _deployment(api, namespace)["metadata"]["resourceVersion"]
        operator.passes_that_write_nothing(3)
        live = _deployment(api, namespace)
        assert live["metadata"]["resourceVersion"] == version
        template = live["spec"]["template"]
        assert {container["name"] for container in template["spec"]["containers"]} == {"engine", "proxy"}
        assert template["metadata"]["annotations"] == notes["annotations"]


def test_a_restarted_operator_writes_nothing_when_nothing_changed(api: Api, namespace: str, start: Start) -> None:
    first = start().ready()
    with Fleet(api, namespace):
        api.create("inferenceservices", service(namespace, replicas=2))
        eventually(lambda: _is_ready(api, namespace), "the service is ready")
        first.quiet()
        first.stop()
        second = start(resync_s=0.5).ready()
        eventually(lambda: second.metric("pagefleet_reconcile_seconds_count") >= 3, "three passes")
        assert second.writes() == 0


def test_the_users_object_gets_no_annotation_label_or_finalizer_and_its_spec_stays(
    api: Api, namespace: str, start: Start
) -> None:
    start().ready()
    with Fleet(api, namespace):
        created = api.create("inferenceservices", service(namespace))
        eventually(lambda: _is_ready(api, namespace), "the service is ready")
        live = api.get("inferenceservices", namespace, "s")
        assert live is not None
        assert live["spec"] == created["spec"]
        assert not {"annotations", "labels", "finalizers"} & set(live["metadata"])
        managers = {
            entry["manager"] for entry in live["metadata"]["managedFields"] if entry.get("subresource") != "status"
        }
        assert labels.FIELD_MANAGER not in managers


def test_what_is_ours_is_repaired_and_what_others_add_stays(api: Api, namespace: str, start: Start) -> None:
    start().ready()
    with Fleet(api, namespace):
        api.create("inferenceservices", service(namespace))
        eventually(lambda: _is_ready(api, namespace), "the service is ready")
        foreign = {"annotations": {"team.example/note": "kept"}, "labels": {"team": "a"}}
        api.merge("deployments", namespace, "s", {"metadata": foreign, "spec": {"replicas": 4}})
        eventually(lambda: _deployment(api, namespace)["spec"]["replicas"] == 1, "replicas are repaired")
        api.merge("services", namespace, "s", {"spec": {"selector": {labels.SERVING: "no"}}})
        eventually(
            lambda: (api.get("services", namespace, "s") or {})["spec"]["selector"][labels.SERVING] == "true",
            "the selector is repaired",
        )
        api.delete("serviceaccounts", namespace, "s")
        eventually(lambda: api.get("serviceaccounts", namespace, "s"), "the account is back")
        meta = _deployment(api, namespace)["metadata"]
        assert meta["annotations"]["team.example/note"] == "kept"
        assert meta["labels"]["team"] == "a"


def test_a_roll_out_under_a_storm_of_notes_is_one_write_and_the_service_stays_ready(
    api: Api, namespace: str, start: Start
) -> None:
    operator = start().ready()
    with Fleet(api, namespace, start_delay_s=1.0):
        api.create("inferenceservices", service(namespace, replicas=2))
        eventually(lambda: _is_ready(api, namespace), "the service is ready")
        eventually(lambda: not _condition(api, namespace, "Reconciling"), "nothing is under way")
        before = _deployment(api, namespace)["metadata"]["generation"]
        changed = api.merge("inferenceservices", namespace, "s", {"spec": {"engine": {"maxNumSeqs": 9}}})
        generation, states, deadline_s = changed["metadata"]["generation"], set(), time.monotonic() + 30
        for number in itertools.count():
            notes = {"metadata": {"annotations": {"storm": str(number)}}}
            live = api.merge("inferenceservices", namespace, "s", notes)
            found = {condition["type"]: condition for condition in live["status"]["conditions"]}
            states.add(found["Ready"]["status"])
            rolled = live["status"]["observedGeneration"] == generation and "Reconciling" not in found
            if rolled or time.monotonic() > deadline_s:
                break
            time.sleep(0.05)
        assert rolled, live["status"]
        assert number >= 20
        assert states == {"True"}
        assert _deployment(api, namespace)["metadata"]["generation"] == before + 1
        assert not [line for line in operator.log() if "inconsisten" in str(line).lower()]
        assert not operator.events("pass_crashed")


def test_a_child_that_lost_our_label_is_found_again_and_repaired(api: Api, namespace: str, start: Start) -> None:
    start().ready()
    with Fleet(api, namespace):
        api.create("inferenceservices", service(namespace))
        eventually(lambda: _is_ready(api, namespace), "the service is ready")
        before = _deployment(api, namespace)["metadata"]["uid"]
        api.merge("deployments", namespace, "s", {"metadata": {"labels": {labels.MANAGED_BY: None}}})
        eventually(
            lambda: _deployment(api, namespace)["metadata"]["labels"].get(labels.MANAGED_BY) == "pagefleet",
            "the label is back",
        )
        assert _deployment(api, namespace)["metadata"]["uid"] == before


def test_an_object_of_somebody_else_under_our_name_is_left_alone_and_reported(
    api: Api, namespace: str, start: Start
) -> None:
    start(backoff_cap_s=1.0).ready()
    ports = {"ports": [{"port": 1}]}
    api.create("services", {"metadata": {"name": "s", "namespace": namespace}, "spec": ports})
    api.create("inferenceservices", service(namespace))
    eventually(lambda: _condition(api, namespace, "Ready").get("reason") == "NameConflict", "the conflict is reported")
    assert api.get("deployments", namespace, "s") is None
    assert "ownerReferences" not in (api.get("services", namespace, "s") or {})["metadata"]
    api.delete("services", namespace, "s")
    eventually(lambda: api.get("deployments", namespace, "s"), "the conflict is over")


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_an_example_renders_to_is_written_once(api: Api, namespace: str, name: str) -> None:
    for text in rendered(ROOT / "examples" / f"{name}.yaml").values():
        manifest = yaml.safe_load(text)
        if manifest["kind"] not in KEPT:
            continue  # of a model on nodes, which no pass over the service writes
        if manifest["kind"] == GROUP_SET.name:
            lws.install(api)
        meta = manifest["metadata"]
        meta["namespace"] = namespace
        del meta["ownerReferences"]  # its owner is not there, and the garbage collector would notice
        if manifest["kind"] in WORKLOADS:
            manifest["spec"]["replicas"] = 0
        path = KEPT[manifest["kind"]].path(namespace, meta["name"])
        query = f"?fieldManager={labels.FIELD_MANAGER}&force=true"
        live = api.call("PATCH", path + query, manifest, "application/apply-patch+yaml")
        # a Job is made once, and compared by its digest
        assert manifest["kind"] not in CHILDREN or up_to_date(manifest, live), "it would be written in every pass"


def test_a_pod_template_with_directives_and_nulls_reaches_the_pods_and_is_written_once(
    api: Api, namespace: str, start: Start
) -> None:
    operator = start(resync_s=0.5, backoff_cap_s=1.0).ready()
    tmp = {"name": "tmp", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/scratch"}}
    engine = {"name": "engine", "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}
    overlay: Json = {"spec": {"topologySpreadConstraints": None, "volumes": [tmp], "containers": [engine]}}
    with Fleet(api, namespace):
        api.create("inferenceservices", service(namespace, podTemplate=overlay), strict=True)
        eventually(lambda: _is_ready(api, namespace), "the service is ready")
        pod = _deployment(api, namespace)["spec"]["template"]["spec"]
        assert "topologySpreadConstraints" not in pod
        assert [volume.get("hostPath", {}).get("path") for volume in pod["volumes"]] == ["/scratch"]
        assert "volumes[tmp].hostPath" in _condition(api, namespace, "Ready")["message"]
        operator.passes_that_write_nothing(3)
        overlay["spec"]["containers"][0]["env"] = [{"name": "A", "value": 1}]
        api.merge("inferenceservices", namespace, "s", {"spec": {"podTemplate": overlay}})
        eventually(lambda: _condition(api, namespace, "Stalled").get("reason") == "ApplyFailed", "it is refused")
        assert 'env[name="A"].value: expected string' in _condition(api, namespace, "Stalled")["message"]
        assert _is_ready(api, namespace), "what ran before goes on"
        overlay["spec"]["terminationGracePeriodSeconds"] = 1
        api.merge("inferenceservices", namespace, "s", {"spec": {"podTemplate": overlay}})
        eventually(lambda: _condition(api, namespace, "Ready").get("reason") == "InvalidSpec", "it is reserved")
        told = _condition(api, namespace, "Ready")["message"]
        assert "spec.drain.timeoutSeconds" in told and "what ran before goes on: 1 of 1 pod serves" in told
        assert _is_ready(api, namespace), "its pod serves"


def test_whatever_characters_a_service_has_reach_its_pods_once(api: Api, namespace: str, start: Start) -> None:
    note, name = '😀 né \x7f\x85\ufeff\u2028 \\ud83d "', "model-😀"
    operator = start(resync_s=0.5).ready()
    body = service(namespace)
    body["spec"]["model"]["servedName"] = name
    body["spec"]["podTemplate"] = {"metadata": {"annotations": {"team.example/note": note}}}
    api.create("inferenceservices", body)
    eventually(
        lambda: api.get("deployments", namespace, "s") or {}, f"a Deployment ({_condition(api, namespace, 'Ready')})"
    )
    template = _deployment(api, namespace)["spec"]["template"]
    assert template["metadata"]["annotations"]["team.example/note"] == note
    assert name in template["spec"]["containers"][0]["args"]
    operator.passes_that_write_nothing(3)


def test_deleting_a_service_takes_its_children_along(api: Api, namespace: str, start: Start) -> None:
    operator = start().ready()
    with Fleet(api, namespace):
        api.create("inferenceservices", service(namespace))
        eventually(lambda: _is_ready(api, namespace), "the service is ready")
        api.delete("inferenceservices", namespace, "s")
        eventually(lambda: not api.list("pods", namespace), "the pods are gone", 60)
        eventually(lambda: api.get("deployments", namespace, "s") is None, "the Deployment is gone")
        eventually(lambda: 'inference_service="s"' not in operator.get("/metrics")[1], "its series are gone")
        assert not operator.events("pass_crashed")


def test_an_upgrade_of_the_operator_keeps_the_image_until_the_user_changes_the_engine(
    api: Api, namespace: str, start: Start
) -> None:
    first = start().ready()
    with Fleet(api, namespace):
        api.create("inferenceservices", service(namespace))
        eventually(lambda: _is_ready(api, namespace), "the service is ready")
        first.stop()
        flags = ("--namespace", namespace, "--engine-image", "engine:2")
        start(flags=flags, resync_s=0.5).ready()

        def image() -> str:
            return str(_deployment(api, namespace)["spec"]["template"]["spec"]["containers"][0]["image"])

        api.merge("inferenceservices", namespace, "s", {"spec": {"replicas": 2}}, "scale")
        eventually(lambda: _deployment(api, namespace)["spec"]["replicas"] == 2, "it is scaled")
        assert image() == "engine:1"
        api.merge("inferenceservices", namespace, "s", {"spec": {"engine": {"maxNumSeqs": 9}}})
        eventually(lambda: image() == "engine:2", "the new default is taken with the user's change")


def test_any_name_that_the_api_server_takes_gets_children(api: Api, namespace: str, start: Start) -> None:
    start().ready()
    names = ("a" * 63, "b" * 100, "c.with.dots", "1-starts-with-a-digit")
    for name in names:
        api.create("inferenceservices", service(namespace, name))
    for child in map(labels.child_name, names):
        eventually(lambda: api.get("deployments", namespace, child), f"the Deployment {child}")  # noqa: B023
        eventually(lambda: api.get("services", namespace, child), f"the Service {child}")  # noqa: B023
