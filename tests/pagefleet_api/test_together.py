"""Fields that do not go together: the parser's words; the API server's are the same (tests with a real one)."""

import re
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_api.crd import custom_resource_definition
from pagefleet_api.service import InferenceService, InvalidService
from tests.pagefleet_api.test_service import nodes
from tests.pagefleet_api.together import NAMED, TOGETHER, Case

_MODEL = {"uri": "file:///m"}
_INDEX = re.compile(r"\[\d+\]")


def lines(spec: dict[str, Any]) -> list[str]:
    """What the parser says of a spec."""
    meta = {"namespace": "n", "name": "s", "uid": "u"}
    try:
        InferenceService.parse({"metadata": meta, "spec": {"model": _MODEL, **spec}})
    except InvalidService as refusal:
        return str(refusal).splitlines()
    return []


@pytest.mark.parametrize("case", TOGETHER, ids=lambda case: f"{case.field}: {case.words[:40]}")
def test_fields_that_do_not_go_together_are_told_with_their_values_and_the_way_out(case: Case) -> None:
    assert f"{case.place}: {case.words}" in lines(case.spec)


@pytest.mark.parametrize("case", NAMED, ids=lambda case: case.field)
def test_one_of_many_is_told_by_its_name(case: Case) -> None:
    (line,) = lines(case.spec)
    assert line.endswith(case.words)


def _rules() -> list[tuple[str, dict[str, Any]]]:
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    found = [(path, node) for path, node in nodes(schema) if node.get("type") == "object"]
    return [(path.removeprefix("."), rule) for path, node in found for rule in node.get("x-kubernetes-validations", ())]


def _says(rule: dict[str, Any], words: str) -> bool:
    """Whether these are the rule's words, with whatever values."""
    template = re.match(r"'((?:\\.|[^'\\])*)'\.format\(", rule.get("messageExpression", ""))
    plain = rule["message"] if template is None else template[1].replace("\\'", "'")
    return re.fullmatch(".+".join(map(re.escape, plain.split("%s"))), words) is not None


@pytest.mark.parametrize(("path", "rule"), _rules(), ids=lambda each: each if isinstance(each, str) else "")
def test_each_rule_about_several_fields_names_one_and_is_told_here(path: str, rule: dict[str, Any]) -> None:
    of_it = [case for case in (*TOGETHER, *NAMED) if _INDEX.sub("[]", case.place) == path and _says(rule, case.words)]
    assert of_it, "no spec here breaks it"
    assert all(rule["fieldPath"] == f".{case.field}" for case in of_it)


def _about(case: Case) -> set[str]:
    """The parts of a spec that a case is about: most of a model's are about its engine too."""
    return {*case.spec} | ({"model", "engine"} if {"model", "engine"} & {*case.spec} else set())


_PAIRS = [pair for pair in combinations(TOGETHER, 2) if not _about(pair[0]) & _about(pair[1])]


@given(st.sampled_from(_PAIRS))
def test_of_faults_that_have_nothing_to_do_with_each_other_each_is_told(pair: tuple[Case, Case]) -> None:
    said = lines(pair[0].spec | pair[1].spec)
    assert all(f"{case.place}: {case.words}" in said for case in pair)


def test_a_part_that_does_not_agree_hides_nothing_of_what_it_is_part_of() -> None:
    said = lines({"model": {"uri": "pkg://m"}, "engine": {"runtime": "vllm", "device": "paced"}, "rollout": {}})
    assert [line.partition(" is ")[0] for line in said] == [
        "spec.engine: engine.device paced",
        "spec.engine: engine.image",
        "spec: model.uri pkg://m: pkg://",
    ]


def test_what_cannot_be_read_hides_no_part_that_does_not_agree() -> None:
    said = lines({"replicas": "many", "autoscaling": {"minReplicas": 4, "maxReplicas": 3}})
    assert [line.partition(":")[0] for line in said] == ["spec.replicas", "spec.autoscaling"]
