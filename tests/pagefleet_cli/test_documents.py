import io
from pathlib import Path

import pytest

from pagefleet_cli.documents import read_services
from pagefleet_cli.errors import InputWrong

HEAD = "apiVersion: pagefleet.io/v1alpha1\nkind: InferenceService\nmetadata: {name: a}\n"
GOOD = HEAD + "spec: {model: {uri: pkg://m}}\n"


def refusal(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(InputWrong) as caught:
        read_services(str(file))
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{file}: ") for line in lines)
    return [line.removeprefix(f"{file}: ") for line in lines]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{GOOD}when: 2024-99-99\n", "this is no YAML: month must be in 1..12"),
        ("a: " + "[" * 1000 + "]" * 1000, "nested deeper than any Kubernetes object"),
        ("&a\nkind: List\nitems: [*a]\n", "no InferenceService of"),
        (GOOD.replace("{name: a}", "[a]"), "InferenceService: metadata must be an object"),
        (GOOD.replace("{name: a}", "{name: 5}"), "metadata.name is 5, no text; put it in quotes"),
        (GOOD.replace("{name: a}", "{name: a, namespace: [b]}"), "metadata.namespace is ['b'], no text"),
    ],
)
def test_what_is_no_object_is_told_in_a_line(tmp_path: Path, text: str, words: str) -> None:
    (told,) = refusal(tmp_path, text)
    assert words in told


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("{model: {uri: pkg://m}, engine: {maxModelLenn: 4096}}",
         "spec.engine.maxModelLenn is not a field; did you mean spec.engine.maxModelLen?"),
        ("{model: {uri: pkg://m}, maxModelLen: 4096}",
         "spec.maxModelLen is not a field; did you mean spec.engine.maxModelLen?"),
        ("{model: {uri: pkg://m, x: 1}}", "spec.model.x is not a field; there are "),
        ("{model: {uri: pkg://m, 2020-01-01: 1}}", "spec.model.2020-01-01 is not a field; there are "),
        ("{model: {uri: pkg://m}, autoscaling: {maxReplicas: 2, metrics: [{typ: X, type: WaitingRequests, "
         "target: {averageValue: 4}}]}}",
         "spec.autoscaling.metrics[0].typ is not a field; did you mean spec.autoscaling.metrics[0].type?"),
        ("{model: {uri: pkg://m}, engine: {maxNumSeqs: 0}}",
         "spec.engine.maxNumSeqs: must be a whole number from 1 to 65536 (given: 0)"),
        ("{model: {uri: pkg://m}, drain: {timeoutSeconds: 2m}}",
         "spec.drain.timeoutSeconds must be a whole number of seconds from 0 to 86400, without quotes; it is '2m'"),
        ("{model: {uri: pkg://m}, autoscaling: {maxReplicas: 2, metrics: [{type: TimeToFirstToken, "
         "target: {p95: 500}}]}}",
         "spec.autoscaling.metrics[0].target.p95 must be text in quotes: a duration such as 500ms or 1m30s; it is 500"),
        ("{model: {uri: pkg://m}, engine: {kvCache: {size: 1.5}}}",
         "spec.engine.kvCache.size must be a quantity such as 512Mi, at least 1Mi and at most 1Pi, in quotes; it is"),
        ("{model: {uri: pkg://m}, engine: {kvCache: {dtype: 8}}}",
         "spec.engine.kvCache.dtype must be text in quotes: one of auto, fp8; it is 8"),
        ("{model: {uri: pkg://m}, replicas: true}", "spec.replicas must be a whole number from 0 to 10000; it is True"),
        ("{model: {uri: 5}}", "spec.model.uri must be text in quotes; it is 5"),
        ("{model: {uri: pkg://m}, drain: 600}", "spec.drain must be an object, which has fields; it is 600"),
        ("{model: {uri: pkg://m}, engine: {extraArgs: --x}}", "spec.engine.extraArgs must be a list; it is '--x'"),
        ("{model: {uri: pkg://m}, resources: {limits: {cpu: [1]}}}",
         "spec.resources.limits.cpu must be a quantity such as '512Mi', '2Gi' or '0.5', at least 0; it is [1]"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_the_way_out(tmp_path: Path, spec: str, line: str) -> None:
    (told,) = refusal(tmp_path, f"{HEAD}spec: {spec}\n")
    assert told.startswith(f"InferenceService a: {line}")


@pytest.mark.parametrize("fields", ["generation: x", "uid: 5", "managedFields: 5", "managedFields: [5]", "5: 6"])
def test_of_what_only_the_api_server_writes_nothing_is_asked(tmp_path: Path, fields: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(GOOD.replace("name: a", f"name: a, {fields}"))
    assert [service.name for service in read_services(str(file))] == ["a"]


def test_a_name_that_no_object_can_have_is_told_first_and_hides_nothing(tmp_path: Path) -> None:
    text = (
        GOOD.replace("{name: a}", "{name: A, namespace: B}").replace("pkg://m", "m").replace("spec: {", "spec: {x: 1, ")
    )
    said = [line.removeprefix("InferenceService A: ").partition(" ")[0] for line in refusal(tmp_path, text)]
    assert said == ["metadata.name", "metadata.namespace", "spec.x", "spec.model.uri:"]


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    text = f"{HEAD}spec: {{model: {{uri: pkg://m}}, replica: 1, drian: {{}}}}\n---\n{HEAD}spec: {{}}\n"
    assert len(refusal(tmp_path, text)) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "this is no YAML"),
        ("just words", "'just words' is no Kubernetes object"),
        ("kind: ConfigMap\napiVersion: v1\n", "no InferenceService of pagefleet.io/v1alpha1 is in it"),
        ("", "no InferenceService"),
        (GOOD.replace("pagefleet.io/v1alpha1", "serving.kserve.io/v1beta1"), "apiVersion is 'serving.kserve.io"),
        (GOOD.replace("{name: a}", "{}"), "metadata.name is absent"),
        (
            GOOD.replace("{name: a}", "{name: My_Model}"),
            "metadata.name must be lower-case letters, digits, - and ., with",
        ),
        (GOOD.replace("{name: a}", "{name: -a}"), "with a letter or digit at each end; it is '-a'"),
        (
            GOOD.replace("{name: a}", "{name: a, namespace: b.c}"),
            "metadata.namespace must be lower-case letters, digits and",
        ),
        (GOOD.replace("name: a", f"name: {'a' * 254}"), "metadata.name has 254 characters, and at most 253 may be"),
    ],
)
def test_a_file_without_a_usable_service_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (told,) = refusal(tmp_path, text)
    assert words in told


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InputWrong, match=r"no\.yaml: No such file or directory; give a YAML file"):
        read_services("no.yaml")


def test_other_objects_are_passed_over_and_lists_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    indented = "".join(f"  {line}\n" for line in GOOD.splitlines())
    listed = f"kind: List\napiVersion: v1\nitems:\n- {indented.lstrip()}"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"kind: Namespace\n---\n---\n{GOOD}---\n{listed}"))
    services = read_services("-")
    assert [(service.namespace, service.name) for service in services] == [("default", "a")] * 2


@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parents[2] / "examples").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_example_can_be_planned(file: Path) -> None:
    assert read_services(str(file))
