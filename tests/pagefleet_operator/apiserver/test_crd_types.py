"""Types of values: the API server and those who read files refuse the same."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pagefleet_cli import strict
from pagefleet_cli.documents import read_services
from pagefleet_cli.errors import InputWrong
from tests.pagefleet_operator.apiserver.api import Api, ApiRefusal
from tests.pagefleet_operator.apiserver.operators import service, with_field

pytestmark = pytest.mark.apiserver


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.uri", 5),
        ("replicas", "3"),
        ("replicas", True),
        ("replicas", 2.5),
        ("drain", 600),
        ("drain.timeoutSeconds", "2m"),
        ("engine.extraArgs", "--x"),
        ("engine.extraArgs", [1]),
        ("resources.limits", {"cpu": 0.5}),
        ("resources.limits", ["cpu"]),
        ("engine.kvCache.size", 1.5),
        ("rollout.maxSurge", False),
    ],
)
def test_what_is_of_another_type_is_refused_here_as_by_those_who_read_files(
    api: Api, namespace: str, path: str, value: Any
) -> None:
    body = with_field(namespace, path, value)
    assert strict.faults(body).mistyped
    with pytest.raises(ApiRefusal) as refusal:
        api.create("inferenceservices", body)
    assert refusal.value.status in {400, 422}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("drain.timeoutSeconds", 60.0),
        ("drain", None),
        ("rollout.maxSurge", 1),
        ("resources.limits", {"cpu": "0.5", "memory": 2**31}),
    ],
)
def test_what_only_looks_like_another_type_is_taken(api: Api, namespace: str, path: str, value: Any) -> None:
    body = with_field(namespace, path, value)
    assert strict.faults(body) == strict.Faults([], [])
    api.create("inferenceservices", body)


@pytest.mark.parametrize("name", ["a", "a.b-1", "1", "a" * 253, "A", "a_b", "-a", "a-", "a..b", "a" * 254, "a\n"])
def test_a_name_is_taken_by_both_or_by_none(api: Api, namespace: str, tmp_path: Path, name: str) -> None:
    file, body = tmp_path / "x.yaml", service(namespace, name)
    file.write_text(yaml.safe_dump(body))
    refused = []
    for take in (lambda: read_services(str(file)), lambda: api.create("inferenceservices", body)):
        try:
            take()
        except (InputWrong, ApiRefusal) as refusal:
            assert "metadata.name" in str(refusal)
            refused.append(take)
    assert len(refused) in {0, 2}
