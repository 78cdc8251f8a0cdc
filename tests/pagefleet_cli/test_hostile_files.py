"""Whatever a file holds, reading and planning it ends: in services, or in lines that name the file."""

import copy
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagefleet_api.sizing import gpu_types
from pagefleet_api.sizing.facts import ModelFacts
from pagefleet_cli.documents import read_services
from pagefleet_cli.errors import InputWrong
from pagefleet_cli.planning import estimates, report
from tests.pagefleet_api.sizing import configs

EXAMPLES = [
    body
    for path in sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
    for body in yaml.safe_load_all(path.read_text())
    if body["kind"] == "InferenceService"
]
FACTS = ModelFacts.read(configs.LLAMA_8B)
odd: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -1, 1, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, float("inf"), float("nan"), "", "0", "-1", "1e99",
     "9E", "1.5Gi", "10%", "100%", "\x00", "a" * 300, "\ud7ff", "../..", "pkg://", "file:///", [], {}, [[]],
     [{}], {"a": 1}]
)  # fmt: skip
texts = st.text(max_size=5)
anything = st.recursive(
    odd | texts, lambda part: st.lists(part, max_size=3) | st.dictionaries(texts, part, max_size=3), max_leaves=6
)


@st.composite
def changed(draw: st.DrawFn) -> dict[str, Any]:
    """An example with a value replaced, removed or added, up to three times."""
    body: dict[str, Any] = copy.deepcopy(draw(st.sampled_from(EXAMPLES)))
    for _ in range(draw(st.integers(1, 3))):
        place, name = _somewhere(draw, body)
        what = draw(st.sampled_from(["replace", "remove", "add"]))
        if what == "replace" and name is not None:
            place[name] = copy.deepcopy(draw(anything))
        elif what == "remove" and name is not None:
            del place[name]
        elif isinstance(place, dict):
            place[draw(texts)] = copy.deepcopy(draw(anything))
    return body


def _somewhere(draw: st.DrawFn, body: Any) -> tuple[Any, Any]:
    """An object or a list in it, and the name or the index of one of its parts."""
    names = list(body) if isinstance(body, dict) else list(range(len(body)))
    name = draw(st.sampled_from(names)) if names else None
    inner = None if name is None else body[name]
    return _somewhere(draw, inner) if isinstance(inner, dict | list) and draw(st.integers(0, 3)) else (body, name)


def end(text: str, file: Path) -> None:
    """Read a file of this text and plan what is in it."""
    file.write_bytes(text.encode("utf-8", errors="surrogatepass"))
    try:
        services = read_services(str(file))
    except InputWrong as error:
        assert all(line.startswith(f"{file}: ") for line in str(error).split("\n")), str(error)
        return
    plans = [estimates.of_service(service, FACTS, gpu_types.known()) for service in services]
    assert report.as_json(plans)
    assert report.as_table(plans)


FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FEW
@given(body=changed())
def test_an_object_with_odd_values_is_planned_or_refused_in_lines(tmp_path: Path, body: dict[str, Any]) -> None:
    end(yaml.safe_dump(body), tmp_path / "x.yaml")


pieces = st.sampled_from(
    ["a", ": ", "- ", "\n", "\n  ", "{", "}", "[", "]", ", ", "&a ", "*a", "<<: ", "!!set ", "!!omap ", "!!binary ",
     "? ", "|", ">", "'", '"', "#", "---\n", "...\n", "%YAML 9.9\n", "0x", "0b1", "1:9:9", "2024-01-01", "~",
     "kind: List\n", "items: ", "kind: InferenceService\n", "apiVersion: pagefleet.io/v1alpha1\n", "metadata: ",
     "{name: a}\n", "spec: ", "\t", "\r", "=", "\ufeff"]
)  # fmt: skip


@FEW
@given(text=st.lists(pieces | st.text(max_size=4), max_size=30).map("".join))
def test_any_text_is_read_or_refused_in_lines(tmp_path: Path, text: str) -> None:
    end(text, tmp_path / "x.yaml")
