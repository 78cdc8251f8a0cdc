"""What may be in spec.podTemplate, and what is refused with the field and the way out."""

from typing import Any

import pytest

from pagefleet_api.service import InferenceService, InvalidService


def _parse(template: Any) -> InferenceService:
    spec = {"model": {"uri": "pkg://m"}, "podTemplate": template}
    return InferenceService.parse({"metadata": {"namespace": "n", "name": "s", "uid": "u"}, "spec": spec})


def _engine(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "engine", **fields}]}}


def _spec(**fields: Any) -> dict[str, Any]:
    return {"spec": fields}


def _affine(**term: Any) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return _spec(affinity={"nodeAffinity": required})


_LEAVING = {"effect": "NoExecute", "operator": "Exists"}
_NAMED = {"key": "metadata.name", "operator": "In", "values": ["a"]}


def _nested(levels: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for _ in range(levels):
        result = {"a": result}
    return result


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"metadata": {"labels": {"team": "a", "old": None}, "annotations": {"x": "1"}}, "spec": {"hostname": "h"}},
        _engine(env=[{"name": "A", "$patch": "delete"}], startupProbe={"failureThreshold": 9}),
        _spec(volumes=[{"name": "tmp", "$retainKeys": ["name", "hostPath"], "hostPath": {}, "emptyDir": None}]),
        _spec(topologySpreadConstraints=[{"$patch": "replace"}], containers=[{"name": "sidecar", "image": "i"}]),
        _spec(hostAliases=None, tolerations=[{"key": "a"}]),
        _spec(nodeSelector=None, affinity={"podAffinity": {}}, tolerations=None),
        _affine(matchExpressions=[{"key": "a", "operator": "Gt", "values": ["-3"]}]),
        _spec(tolerations=[_LEAVING | {"tolerationSeconds": 30, "key": "a.b/c", "operator": "Equal", "value": ""}]),
        _spec(tolerations=[{"$patch": "replace"}, {"key": "a", "operator": "Exists"}]),
        _spec(containers=[{"name": "a", "$patch": "delete"}, {"name": "a", "image": "i"}]),
        _spec(containers=[{"name": "a", "resources": {"requests": {"cpu": "two"}, "limits": {"cpu": 1}}}]),
    ],
)  # fmt: skip
def test_what_does_not_touch_the_operators_own_is_kept_as_it_is(template: Any) -> None:
    assert _parse(template).spec.pod_template == template


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ([], "spec.podTemplate"),
        (_spec(volumes=[{"name": {}}]), "spec.volumes[0].name must be a plain value"),
        (_spec(containers=[{"name": ["engine"]}]), "spec.containers[0].name must be a plain value"),
        (_spec(affinity={"$patch": ["replace"]}), "spec.affinity: $patch: ['replace'] is none"),
        (_spec(affinity={5: "x"}), "spec.affinity: 5 is no name of a field"),
        (_spec(affinity=_nested(900)), "more than 32 levels deep"),
        (_spec(nodeSelector="gpu"), "spec.nodeSelector must be an object, but it is 'gpu'"),
        (_spec(nodeSelector={"gpu": True}), "spec.nodeSelector.gpu must be a string, but it is True; put it in quotes"),
        (_spec(tolerations={}), "spec.tolerations must be a list, but it is {}"),
        (_spec(tolerations=["gpu"]), "spec.tolerations[0] must be an object, but it is 'gpu'"),
        (_spec(tolerations=[{"key": 1}]), "spec.tolerations[0].key must be a string, but it is 1; put it in quotes"),
        (_spec(tolerations=[{}]), "spec.tolerations[0] has no key; give it, or operator: Exists for every taint"),
        (_spec(tolerations=[{"key": "a", "foo": 1}]), "spec.tolerations[0].foo is no field of a toleration"),
        (_spec(tolerations=[{"key": "a", "operator": "Nope"}]), "operator is 'Nope'; use Exists, or Equal with a"),
        (_spec(tolerations=[{"key": "a", "effect": "Zap"}]), "effect is 'Zap'; use one of NoSchedule, Prefer"),
        (_spec(tolerations=[{"key": "a b"}]), "key is 'a b', which no taint can have; use a name such as nvidia.com"),
        (_spec(tolerations=[{"key": "a" * 64}]), "which no taint can have"),
        (_spec(tolerations=[{"key": f"{'a' * 254}/b"}]), "which no taint can have"),
        (_spec(tolerations=[{"key": "a", "value": "b c"}]), "value is 'b c', which no taint can have; use letters"),
        (_spec(tolerations=[{"operator": "Exists", "value": "b"}]), "value is 'b', and operator Exists takes none"),
        (_spec(tolerations=[_LEAVING | {"tolerationSeconds": "x"}]), "must be a whole number, but it is 'x'"),
        (_spec(tolerations=[_LEAVING | {"tolerationSeconds": True}]), "must be a whole number, but it is True"),
        (_spec(tolerations=[_LEAVING | {"tolerationSeconds": 2**63}]), "must be a whole number, but it is 9223"),
        (_spec(tolerations=[{"key": "a", "tolerationSeconds": 1}]), "is for effect NoExecute alone; leave it out"),
        (_spec(tolerations=[_LEAVING] * 101), "spec.tolerations has 101 items, and 100 are the most; leave the others"),
        (
            _spec(nodeSelector={str(n): "" for n in range(101)}),
            "spec.nodeSelector has 101 labels, and 100 are the most",
        ),
        (_affine(matchFields=[_NAMED] * 201), "nodeSelectorTerms has 201 requirements in all, and 200 are the most"),
        (_affine(matchFields=[_NAMED | {"values": ["a"] * 5001}]), "5001 values in all, and 5000 are the most"),
        (_spec(affinity=[]), "spec.affinity must be an object, but it is []"),
        (_affine(matchExpressions={}), "nodeSelectorTerms[0].matchExpressions must be a list, but it is {}"),
        (_affine(matchFields=[{"operator": "Exists"}]), "matchFields[0].key must be a label's name, but it is None"),
        (_affine(matchExpressions=[{"key": "a"}]), "operator is None; use one of In, NotIn, Exists, DoesNotExist, Gt"),
        (_affine(matchExpressions=[{"key": "a", "operator": ["In"]}]), "operator is ['In']; use one of"),
        (_affine(matchExpressions=[{"key": "a", "operator": "In", "values": [1]}]), "values must be a list of strings"),
        (_affine(matchExpressions=[{"key": "a", "operator": "Gt"}]), "values must be one whole number for Gt"),
        (_affine(matchExpressions=[{"key": "a", "operator": "Lt", "values": ["x"]}]), "one whole number for Lt"),
        ({"status": {}}, "status cannot be set: a pod template has metadata and spec"),
        ({"spec": []}, "spec must be an object"),
        ({"metadata": {"name": "x"}}, "metadata.name cannot be set"),
        ({"metadata": {"labels": []}}, "metadata.labels must be an object"),
        ({"metadata": {"labels": {"$patch": "replace"}}}, "metadata.labels cannot take $patch"),
        ({"metadata": {"labels": {"pagefleet.io/serving": "false"}}}, "labels.pagefleet.io/serving is the operator's"),
        ({"metadata": {"labels": {"app.kubernetes.io/instance": None}}}, "is the operator's own"),
        ({"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "1"}}}, "is the operator's own"),
        ({"metadata": {"labels": {"leaderworkerset.sigs.k8s.io/name": "others"}}}, "is LWS' own"),
        ({"metadata": {"labels": {"gpus": 4}}}, "metadata.labels.gpus must be a string, but it is 4"),
        (_spec(terminationGracePeriodSeconds=5), "spec.drain.timeoutSeconds says"),
        (_spec(restartPolicy="Never"), "spec.restartPolicy cannot be set here"),
        ({"spec": {"$patch": "replace"}}, "spec cannot take $patch"),
        (_spec(containers=[{"$patch": "replace"}]), "spec.containers cannot be replaced"),
        (_spec(volumes=None), "spec.volumes cannot be null"),
        (_engine(**{"$patch": "delete"}), "spec.containers[0] cannot take $patch"),
        (_engine(image="x"), "spec.engine.image says it"),
        (_engine(args=["--model", "x"]), "the fields of spec.engine say them"),
        (_engine(resources={"limits": {"nvidia.com/gpu": 1}}), "spec.resources says them"),
        (_engine(envFrom=[]), "spec.engine.apiKeysSecretRef"),
        (_engine(env=[{"name": "PAGEFLEET_API_KEY_0", "value": "x"}]), "PAGEFLEET_API_KEY_0 is the operator's own"),
        (_engine(env=[{"$patch": "replace"}]), "spec.containers[0].env cannot be replaced"),
        (_engine(env=None), "spec.containers[0].env cannot be null"),
        (_engine(readinessProbe={"httpGet": {"path": "/"}}), "readinessProbe takes failureThreshold"),
        (_engine(readinessProbe=None), "not null"),
        (_spec(containers=[{"image": "x"}]), "spec.containers[0] has no name, by which this list is merged"),
        (_spec(containers={}), "spec.containers must be a list"),
        (_spec(containers=[{"name": "a"}, {"name": "a"}]), "spec.containers[1].name a is taken by another container"),
        (_spec(initContainers=[{"name": "a"}, {"name": "a"}]), "spec.initContainers[1].name a is taken by another"),
        (
            _spec(initContainers=[{"name": "warm-up"}, {"name": "copy-model", "image": "i"}]),
            "spec.initContainers[1].name copy-model is the operator's own; choose another name",
        ),
        (
            _spec(containers=[{"name": "side", "resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}}]),
            "spec.containers[0].resources.requests.cpu 2 is above spec.containers[0].resources.limits.cpu 1500m; lower",
        ),
        (_spec(initContainers=[{"name": "place-copier", "$patch": "delete"}]), "place-copier is the operator's own"),
        (
            _spec(initContainers=[{"name": "fetch-draft"}]),
            "spec.initContainers[0].name fetch-draft is the operator's own",
        ),
        (
            _spec(initContainers=[{"name": "fetch-adapter-7"}]),
            "spec.initContainers[0].name fetch-adapter-7 is the operator",
        ),
        (_spec(containers=[{"name": "fetch-model"}]), "spec.containers[0].name fetch-model is the operator's own"),
        (_spec(initContainers=[{"name": "engine"}]), "spec.initContainers[0].name engine is the operator's own"),
        ({"metadata": {"annotations": {"x": "y" * 196_608}}}, "bytes as JSON, and 196608 are the most"),
        (_spec(volumes=["tmp"]), "spec.volumes[0] must be an object"),
        (_engine(volumeMounts=[{"name": "x"}]), "spec.containers[0].volumeMounts[0] has no mountPath"),
        (_spec(volumes=[{"name": ["tmp"]}]), "spec.volumes[0].name must be a plain value, not ['tmp']"),
        (_spec(securityContext="none"), "spec.securityContext must be an object"),
        (_engine(securityContext=[]), "spec.containers[0].securityContext must be an object"),
        (_engine(securityContext={"seccompProfile": "x"}), "securityContext.seccompProfile must be an object"),
        (_engine(securityContext={"capabilities": {"add": "ALL"}}), "capabilities.add must be a list of names"),
        (_spec(initContainers=[{"name": "i", "securityContext": 1}]), "spec.initContainers[0].securityContext must be"),
        (_spec(securityContext={"$patch": "merge"}), "spec.securityContext: $patch: 'merge' is none"),
        (_spec(**{"$setElementOrder/containers": []}), "$setElementOrder/containers is not supported"),
        (_spec(tolerations=[{"$patch": "keep"}]), "spec.tolerations[0]: $patch: 'keep' is none"),
        (_spec(volumes=[{"name": "tmp", "$retainKeys": "name"}]), "$retainKeys must be a list"),
        (
            _spec(volumes=[{"name": "tmp", "$retainKeys": ["name"], "hostPath": {}}]),
            "spec.volumes[0]: hostPath is set and not in $retainKeys",
        ),
    ],
)
def test_what_would_break_a_promise_is_refused_by_name(template: Any, words: str) -> None:
    with pytest.raises(InvalidService) as refusal:
        _parse(template)
    assert words in str(refusal.value)
    assert str(refusal.value).startswith("spec.podTemplate")
