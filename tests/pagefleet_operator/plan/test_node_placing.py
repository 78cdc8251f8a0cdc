"""Which nodes may get a model."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_api.service import InvalidService
from pagefleet_operator.plan.node_placing import may_hold, placing, tolerations
from tests.pagefleet_operator.plan.nodes import node, user


def holds(place: dict[str, Any], **pod: Any) -> bool:
    return may_hold(place, user(podTemplate={"spec": pod}))


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def tainted(**taint: str) -> dict[str, Any]:
    return node(spec={"taints": [{"effect": "NoSchedule", **taint}]})


def test_a_node_may_hold_what_says_nothing_of_nodes() -> None:
    assert may_hold(node(), user())


def test_a_selector_must_match_every_label() -> None:
    place = node(labels={"zone": "z"})
    assert holds(place, nodeSelector={"zone": "z"})
    assert not holds(place, nodeSelector={"zone": "z", "disk": "ssd"})


@pytest.mark.parametrize(
    ("operator", "values", "expected"),
    [
        ("In", ["7", "8"], True),
        ("In", ["8"], False),
        ("NotIn", ["7"], False),
        ("NotIn", ["8"], True),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
        ("Gt", ["6"], True),
        ("Gt", ["7"], False),
        ("Lt", ["8"], True),
        ("Lt", ["7"], False),
    ],
)
def test_operators_of_affinity(operator: str, values: list[str], expected: bool) -> None:
    assert holds(node(labels={"n": "7"}), affinity=required(expression("n", operator, *values))) is expected


@pytest.mark.parametrize(
    ("operator", "expected"), [("NotIn", True), ("DoesNotExist", True), ("Exists", False), ("Gt", False), ("Lt", False)]
)
def test_operators_on_a_label_that_is_absent(operator: str, expected: bool) -> None:
    assert holds(node(), affinity=required(expression("n", operator, "1"))) is expected


def test_one_term_is_enough_and_an_empty_one_matches_nothing() -> None:
    place = node(labels={"n": "7"})
    assert holds(place, affinity=required(expression("m", "Exists"), expression("n", "Exists")))
    assert not holds(place, affinity=required({}))
    assert holds(place, affinity={"podAntiAffinity": {}})


def test_a_field_is_the_nodes_name() -> None:
    named = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
    assert holds(node("a"), affinity=required(named))
    assert not holds(node("b"), affinity=required(named))


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "value": "h200"}, True),
        ({"key": "gpu", "value": "h100"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "disk", "operator": "Exists"}, False),
    ],
)
def test_a_taint_must_be_tolerated(toleration: dict[str, str], expected: bool) -> None:
    assert holds(tainted(key="gpu", value="h200"), tolerations=[toleration]) is expected


def test_taints_of_a_state_or_without_force_do_not_count() -> None:
    assert holds(tainted(key="node.kubernetes.io/not-ready"))
    assert holds(tainted(key="gpu", effect="PreferNoSchedule"))
    assert not holds(tainted(key="gpu"))


def test_a_node_needs_as_many_gpus_as_a_pod_takes() -> None:
    wanting = user(engine={"parallelism": {"tensor": 2}}, resources={"gpu": {"count": 2}})
    assert not may_hold(node(), wanting)
    assert not may_hold(node(status={"allocatable": {"nvidia.com/gpu": "1"}}), wanting)
    assert may_hold(node(status={"allocatable": {"nvidia.com/gpu": "8"}}), wanting)


def test_the_taint_of_a_pods_gpus_is_tolerated_as_admission_would_do_it() -> None:
    gpus = {"status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    given = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    wanting = user(engine={"parallelism": {"tensor": 2}}, resources={"gpu": {"count": 2}})
    assert may_hold({**tainted(key="nvidia.com/gpu", value="present"), **gpus}, wanting)
    assert not may_hold({**tainted(key="nvidia.com/gpu", effect="NoExecute"), **gpus}, wanting)
    assert not may_hold({**tainted(key="nvidia.com/gpu", value="present"), **gpus}, user())
    assert tolerations([wanting, user(), wanting]) == [given]


def test_the_daemon_set_tolerates_what_any_service_does() -> None:
    first, second = {"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}
    users = [user(podTemplate={"spec": {"tolerations": each}}) for each in ([first], [first, second])]
    assert tolerations([*users, user()]) == [first, second]


_SCALARS = st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from(["", "a", "7", "-1", "9" * 5000, "In", "Gt"])


def _anything(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """`inner`, or what a user may have written there instead."""
    return (
        inner | _SCALARS | st.lists(_SCALARS, max_size=2) | st.dictionaries(st.sampled_from("ab"), _SCALARS, max_size=1)
    )


_REQUIREMENT = st.fixed_dictionaries(
    {"key": _anything(st.just("n")), "operator": _anything(st.sampled_from(["In", "NotIn", "Exists", "Gt", "Lt"]))},
    optional={"values": _anything(st.lists(st.sampled_from(["1", "x", "9" * 5000]), max_size=2))},
)
_TERM = st.dictionaries(
    st.sampled_from(["matchExpressions", "matchFields"]), _anything(st.lists(_REQUIREMENT, max_size=2))
)
_REQUIRED = st.fixed_dictionaries({"nodeSelectorTerms": _anything(st.lists(_anything(_TERM), max_size=2))})
_AFFINITY = st.fixed_dictionaries({"requiredDuringSchedulingIgnoredDuringExecution": _anything(_REQUIRED)})
_TOLERATION = st.fixed_dictionaries(
    {"operator": _anything(st.sampled_from(["Exists", "Equal"]))},
    optional={
        "key": _anything(st.just("k")),
        "value": _anything(st.just("v")),
        "effect": _anything(st.sampled_from(["NoSchedule", "NoExecute"])),
        "tolerationSeconds": _SCALARS,
        "$patch": st.just("replace"),
    },
)
_SPECS = st.fixed_dictionaries(
    {},
    optional={
        "nodeSelector": _anything(st.dictionaries(st.sampled_from(["n", "$patch"]), _anything(st.just("1")))),
        "affinity": _anything(st.fixed_dictionaries({"nodeAffinity": _anything(_AFFINITY)})),
        "tolerations": _anything(st.lists(_anything(_TOLERATION), max_size=2)),
    },
)


@given(_SPECS)
def test_what_a_pod_template_is_not_refused_for_can_be_read(spec: dict[str, Any]) -> None:
    try:
        service = user(podTemplate={"spec": spec})
    except InvalidService:
        return
    place = node(labels={"n": "7"}, spec={"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]})
    may_hold(place, service)
    placing(service)
    tolerations([service])


@given(st.lists(_TOLERATION, min_size=1, max_size=2))
def test_tolerations_that_are_not_refused_make_no_object_that_is(items: list[Any]) -> None:
    try:
        service = user(podTemplate={"spec": {"tolerations": items}})
    except InvalidService:
        return
    for each in tolerations([service]):
        assert {*each} <= {"key", "operator", "value", "effect"}
        assert each["operator"] in {"Exists", "Equal"}
        assert each.get("effect", "NoSchedule") in {"NoSchedule", "PreferNoSchedule", "NoExecute"}


def test_what_a_patch_takes_away_is_asked_of_no_node() -> None:
    assert holds(node(), nodeSelector={"a": None, "$patch": "replace"})


def test_what_a_patch_takes_out_of_a_list_is_no_toleration_and_no_term() -> None:
    gone = {"$patch": "replace"}
    wanting = user(podTemplate={"spec": {"tolerations": [gone, {"key": "b", "operator": "Exists"}]}})
    assert tolerations([wanting]) == [{"key": "b", "operator": "Exists"}]
    assert holds(node(), affinity={"$patch": "delete", **required(expression("m", "Exists"))})
    assert not holds(node(), affinity=required({**expression("n", "DoesNotExist"), "$patch": "delete"}))


def test_only_what_counts_for_nodes_makes_two_placings_differ() -> None:
    prefers: dict[str, Any] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert placing(user(podTemplate={"spec": {"affinity": prefers}})) == placing(user())


def test_how_long_a_toleration_counts_is_no_part_of_what_services_share() -> None:
    leaving = {"key": "k", "effect": "NoExecute", "operator": "Exists", "tolerationSeconds": 30}
    assert tolerations([user(podTemplate={"spec": {"tolerations": [leaving]}})]) == [
        {"key": "k", "operator": "Exists", "effect": "NoExecute"}
    ]


def test_very_many_tolerations_of_many_services_become_one_in_little_time() -> None:
    many = [
        user(podTemplate={"spec": {"tolerations": [{"key": f"{team}.{number}"} for number in range(100)]}})
        for team in range(200)
    ]
    begun_s = time.process_time()
    assert tolerations(many) == [{"operator": "Exists"}]
    assert tolerations(many[:2]) == sorted(tolerations(many[:2]), key=lambda each: each["key"])
    assert len(tolerations(many[:2])) == 200
    took_s = time.process_time() - begun_s
    assert took_s < 1, f"{took_s:.2f} s of CPU"
