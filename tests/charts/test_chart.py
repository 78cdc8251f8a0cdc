"""What the chart renders, by the real Helm."""

from typing import Any

import pytest
import yaml

from pagefleet_api import labels
from pagefleet_api.crd import custom_resource_definition
from pagefleet_api.custom_metrics import API_SERVICE
from tests.charts.golden import CASES, VALUES, golden_path, text
from tests.charts.helm import CHART, NAMESPACE, Manifest, helm, render, template
from tests.charts.strict import problems

pytestmark = pytest.mark.apiserver

Permission = tuple[str, str, str]

PERMISSIONS = {
    ("pagefleet.io", "inferenceservices", "get list watch"),
    ("pagefleet.io", "inferenceservices/status", "patch"),
    ("apps", "deployments", "get list watch create patch delete"),
    ("leaderworkerset.x-k8s.io", "leaderworkersets", "get list create patch delete"),
    ("", "services", "get list watch create patch"),
    ("", "serviceaccounts", "get list watch create patch"),
    ("apps", "replicasets", "get list watch"),
    ("policy", "poddisruptionbudgets", "get list watch create patch delete"),
    ("batch", "jobs", "get list watch create patch delete"),
    ("", "pods", "get list watch patch"),
    ("", "events", "list"),
    ("events.k8s.io", "events", "create"),
}
CLUSTER_PERMISSIONS = PERMISSIONS | {("", "nodes", "list"), ("coordination.k8s.io", "leases", "get")}
NODE_CACHE_PERMISSIONS = {
    ("", "nodes", "patch"),
    ("", "persistentvolumes", "list create patch delete"),
    ("", "persistentvolumeclaims", "list create patch delete"),
}
LEASE_PERMISSIONS = {("coordination.k8s.io", "leases", "create")}
NAMED_LEASE_PERMISSIONS = {("coordination.k8s.io", "leases", "get update")}

TOP_LEVEL = tuple(yaml.safe_load((CHART / "values.yaml").read_text()))
REQUIRED = ("image", "engineImage", "replicas", "logFormat", "crds", "serviceAccount")


def _one(objects: list[Manifest], kind: str, name: str | None = None) -> Manifest:
    (found,) = [o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    return found


def _permissions(rules: list[dict[str, Any]]) -> set[Permission]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _expanded(table: set[tuple[str, str, str]]) -> set[Permission]:
    return {(group, resource, verb) for group, resource, verbs in table for verb in verbs.split()}


@pytest.mark.parametrize("case", CASES)
def test_the_chart_renders_what_its_golden_file_says(case: str) -> None:
    assert text(case) == golden_path(case).read_text(), "python -m tests.charts.golden writes it anew"


@pytest.mark.parametrize("case", CASES)
def test_the_chart_passes_a_strict_lint(case: str) -> None:
    result = helm("lint", "--strict", f"--values={VALUES / case}.yaml", str(CHART))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("case", CASES)
def test_every_rendered_object_is_valid_to_its_last_field(case: str) -> None:
    objects = [o for o in render(f"--values={VALUES / case}.yaml") if o["kind"] != "CustomResourceDefinition"]
    assert [line for manifest in objects for line in problems(manifest)] == []


def test_strict_validation_sees_an_unknown_field_and_a_wrong_type() -> None:
    deployment = _one(render(), "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["imagePulPolicy"] = "Always"
    deployment["spec"]["replicas"] = "1"
    assert problems(deployment) == [
        "Deployment.spec.replicas: not a int: '1'",
        "Deployment.spec.template.spec.containers[0].imagePulPolicy: unknown field",
    ]


def test_the_rendered_crd_is_the_generated_one() -> None:
    crd = _one(render(), "CustomResourceDefinition")
    assert crd["spec"] == custom_resource_definition()["spec"]
    assert crd["metadata"]["name"] == custom_resource_definition()["metadata"]["name"]


@pytest.mark.parametrize(("keep", "annotations"), [("true", {"helm.sh/resource-policy": "keep"}), ("false", None)])
def test_the_crd_outlives_the_release_only_where_it_is_to_be_kept(keep: str, annotations: object) -> None:
    crd = _one(render("--set", f"crds.keep={keep}"), "CustomResourceDefinition")
    assert crd["metadata"].get("annotations") == annotations


def test_the_operator_may_do_what_it_does_and_nothing_else() -> None:
    objects = render()
    assert _permissions(_one(objects, "ClusterRole")["rules"]) == _expanded(CLUSTER_PERMISSIONS)
    create, named = _one(objects, "Role")["rules"]
    assert _permissions([create]) == _expanded(LEASE_PERMISSIONS)
    assert _permissions([named]) == _expanded(NAMED_LEASE_PERMISSIONS)
    assert named["resourceNames"] == ["pagefleet-operator"]
    assert _one(objects, "Role")["metadata"]["namespace"] == NAMESPACE


def test_models_on_nodes_add_labels_volumes_and_what_downloads_them() -> None:
    objects = render("--set", "nodeCache.enabled=true,readModelSecrets=true")
    cluster, own = (_permissions(_one(objects, kind)["rules"]) for kind in ("ClusterRole", "Role"))
    assert cluster == _expanded(CLUSTER_PERMISSIONS | NODE_CACHE_PERMISSIONS | {("", "secrets", "get")})
    leases = LEASE_PERMISSIONS | NAMED_LEASE_PERMISSIONS
    daemon_sets = {("apps", "daemonsets", "get list create patch delete")}
    assert own == _expanded(leases | daemon_sets | {("", "secrets", "create patch")})
    without = _one(render("--set", "nodeCache.enabled=true"), "Role")["rules"]
    assert _permissions(without) == _expanded(leases | daemon_sets)


def test_downloads_onto_nodes_never_see_a_clouds_metadata() -> None:
    policy = _one(render("--set", "nodeCache.enabled=true"), "NetworkPolicy")["spec"]
    assert policy["podSelector"] == {"matchLabels": {labels.NAME: "pagefleet-node-cache"}}
    to, names = policy["egress"]
    assert "169.254.0.0/16" in to["to"][0]["ipBlock"]["except"] and "ports" not in to
    assert {port["port"] for port in names["ports"]} == {53}


@pytest.mark.parametrize("scope", ["watchNamespaces={a}", "shard=blue"])
def test_models_on_nodes_are_for_an_operator_of_all_services(scope: str) -> None:
    result = template("--set", f"nodeCache.enabled=true,{scope}")
    assert result.returncode != 0
    assert "nodeCache.enabled is for all services of a cluster" in result.stderr


def test_a_server_of_metrics_may_ask_who_may_read_and_touch_its_own_registration_alone() -> None:
    objects = render("--set", "customMetrics.enabled=true")
    trust, review = _one(objects, "ClusterRole", "pagefleet-operator-api")["rules"]
    assert _permissions([trust]) == _expanded({("apiregistration.k8s.io", "apiservices", "get patch")})
    assert trust["resourceNames"] == [_one(objects, "APIService")["metadata"]["name"]] == [API_SERVICE]
    assert _permissions([review]) == {("authorization.k8s.io", "subjectaccessreviews", "create")}
    assert "insecureSkipTLSVerify" not in _one(objects, "APIService")["spec"]


def test_a_server_of_metrics_is_refused_where_it_would_answer_half_of_the_time() -> None:
    result = template("--set", "customMetrics.enabled=true,replicas=2")
    assert result.returncode != 0
    assert "customMetrics.enabled needs replicas: 1" in result.stderr


def test_an_operator_of_some_namespaces_has_no_permission_at_cluster_scope() -> None:
    objects = render("--set", "watchNamespaces={a,b}")
    assert [o for o in objects if o["kind"].startswith("ClusterRole")] == []
    for namespace in ("a", "b"):
        (role,) = [o for o in objects if o["kind"] == "Role" and o["metadata"]["namespace"] == namespace]
        assert _permissions(role["rules"]) == _expanded(PERMISSIONS)
        (binding,) = [o for o in objects if o["kind"] == "RoleBinding" and o["metadata"]["namespace"] == namespace]
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert binding["subjects"][0]["namespace"] == NAMESPACE
    arguments = _one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [word for word in arguments if word.startswith("--namespace")] == ["--namespace=a", "--namespace=b"]


def test_the_pod_meets_the_restricted_pod_security_standard() -> None:
    pod = _one(render(), "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert [set(volume) - {"name"} for volume in pod["volumes"]] == [{"emptyDir"}]


@pytest.mark.parametrize(("replicas", "budgets"), [(1, 0), (2, 1), (3, 1)])
def test_a_disruption_budget_exists_only_with_a_standby(replicas: int, budgets: int) -> None:
    objects = render("--set", f"replicas={replicas}")
    assert len([o for o in objects if o["kind"] == "PodDisruptionBudget"]) == budgets


def test_selectors_meet_the_pods_and_survive_every_value() -> None:
    plain = _one(render(), "Deployment")["spec"]["selector"]
    for case in ("cluster", "available"):
        objects = render(f"--values={VALUES / case}.yaml", "--set", "commonLabels.app\\.kubernetes\\.io/name=other")
        deployment = _one(objects, "Deployment")
        assert deployment["spec"]["selector"] == plain, "a selector can never be changed"
        pod_labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert plain["matchLabels"].items() <= pod_labels.items()
        assert _one(objects, "Service")["spec"]["selector"] == plain["matchLabels"]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ("replcas=2", "replcas"),
        ("image.tagg=1", "tagg"),
        ("crds.instal=false", "instal"),
        ("serviceAccount.anotations.a=b", "anotations"),
        ("resources.request.cpu=1", "request"),
        ("logFormat=xml", "logFormat"),
        ("replicas=two", "replicas"),
        ("image.digest=sha256:12", "digest"),
        ("watchNamespaces={Upper}", "watchNamespaces"),
        ("nodeCache.path=/", "path"),
        ("nodeCache.path=/a/../b", "path"),
        ("nodeCache.limit=much", "limit"),
        ("engineImage=", "engineImage"),
        ("serviceAccount.create=false", "serviceAccount.name"),
    ],
)
def test_a_wrong_value_is_refused_by_name(settings: str, named: str) -> None:
    result = template("--set", settings)
    assert result.returncode != 0
    assert named in result.stderr


@pytest.mark.parametrize("key", TOP_LEVEL)
@pytest.mark.parametrize("value", ["null", "{}"])
def test_an_emptied_value_renders_or_is_refused_by_name(key: str, value: str) -> None:
    result = template("--set-json", f"{key}={value}")
    assert result.returncode == 0 or key in result.stderr, result.stderr
    assert "nil pointer" not in result.stderr
    if value == "null":
        assert (result.returncode != 0) == (key in REQUIRED)


def test_a_long_release_name_still_makes_valid_names() -> None:
    name = "a" * 53
    result = helm("template", name, str(CHART), "--kube-version=1.34.0")
    objects = [o for o in yaml.safe_load_all(result.stdout) if o]
    assert {len(o["metadata"]["name"]) <= 63 for o in objects} == {True}


def test_a_digest_is_what_is_pulled() -> None:
    deployment = _one(render(f"--values={VALUES}/available.yaml"), "Deployment")
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == "registry.example.com/platform/pagefleet-control:0.1.0@sha256:" + "0123456789abcdef" * 4
