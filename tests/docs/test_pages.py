"""The pages say what is so: generated ones are up to date, written ones leave nothing out."""

import json
import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel, Field

from docs.chart_values import with_values_table
from docs.generate import ROOT, files
from docs.markdown import table
from docs.resource_page import DefaultMismatch, resource_page
from pagefleet_api.metrics import ENGINE, OPERATOR, Metric
from pagefleet_api.reasons import ConditionType, EventReason, Reason
from pagefleet_api.service import InferenceService
from pagefleet_api.start_phase import StartPhase
from pagefleet_api.vllm_names import VLLM_ALIASES
from pagefleet_engine.api import errors, fields
from pagefleet_engine.api.requests import ChatRequest, CompletionRequest

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "charts" / "pagefleet" / "README.md"])
LINK = re.compile(r"\]\(([^)#:]+)(?:#([^)]+))?\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| (\d{3}) \| `(\w+)` \|", re.MULTILINE)


def _page(name: str) -> str:
    return (DOCS / name).read_text()


def _section(page: str, title: str) -> str:
    return page.split(f"\n## {title}\n")[1].split("\n## ")[0]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", sorted(files()), ids=_name)
def test_a_generated_page_is_what_the_code_says(path: Path) -> None:
    assert path.read_text() == files()[path], "python -m docs.generate writes it anew"


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target, anchor in LINK.findall(path.read_text()):
        found = (path.parent / target).resolve()
        assert found.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("index", ["README.md", "docs/README.md"])
def test_no_page_is_left_out_where_pages_are_listed(index: str) -> None:
    linked = {Path(target).name for target, _ in LINK.findall((ROOT / index).read_text())}
    assert {path.name for path in DOCS.glob("*.md")} - linked - {"README.md"} == set()


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_every_manifest_and_json_in_a_page_can_be_read(path: Path) -> None:
    for language, text in FENCE.findall(path.read_text()):
        if language == "json":
            json.loads(text)
        elif language == "yaml":
            found = yaml.safe_load(text)
            if isinstance(found, dict) and found.get("kind") == "InferenceService":
                found["metadata"] |= {"namespace": "default", "uid": "1"}
                InferenceService.parse(found)


def test_every_reason_is_explained_with_what_to_do() -> None:
    page = _page("troubleshooting.md")
    rows = set(re.findall(r"`(\w+)`", "".join(line for line in page.splitlines() if line.startswith("| `"))))
    assert {reason.value for reason in Reason} - rows == set()


def test_every_condition_that_tells_more_than_progress_has_a_section() -> None:
    page = _page("troubleshooting.md")
    for condition in ConditionType:
        assert f"\n## {condition.value}\n" in page


def test_the_events_on_the_page_exist() -> None:
    named = re.findall(r"^\| (`.+?) \|", _section(_page("troubleshooting.md"), "Events"), re.MULTILINE)
    assert {word.strip("`") for cell in named for word in cell.split(", ")} <= {event.value for event in EventReason}


def _kinds(kind: type[errors.ApiError] = errors.ApiError) -> list[type[errors.ApiError]]:
    return [one for direct in kind.__subclasses__() for one in (direct, *_kinds(direct))]


def test_the_table_of_errors_is_complete_and_right() -> None:
    told = {(int(status), code) for status, code in ROW.findall(_section(_page("engine-api.md"), "Errors"))}
    made = {(errors.http_status(kind("")), errors.code(kind(""))) for kind in (*_kinds(), errors.ApiError)}
    made = {shape for shape in made if shape[1] != "internal_error"} | {(500, "internal_error")}
    assert told == made


@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
def test_every_field_of_a_request_is_on_the_page(kind: type[BaseModel]) -> None:
    words = set(re.findall(r"[a-z_]+", _section(_page("engine-api.md"), "Fields")))
    assert {field.alias or name for name, field in kind.model_fields.items()} - words == set()


def test_the_refused_fields_on_the_page_are_refused() -> None:
    for name in ("tools", "response_format", "suffix"):
        assert name in fields.CHAT | fields.COMPLETIONS


@pytest.mark.parametrize("metric", [*ENGINE, *OPERATOR], ids=lambda metric: metric.name)
def test_every_metric_is_on_the_page_with_its_meaning(metric: Metric) -> None:
    page = _page("metrics.md")
    assert f"| `{metric.name}` | {metric.kind.value} |" in page
    assert metric.help.replace("|", "\\|") in page


def test_every_alias_is_on_the_page_with_what_it_copies() -> None:
    page = _page("metrics.md")
    for alias, of in VLLM_ALIASES:
        assert f"| `{alias.name}` | `{of.name}` |" in page


def test_the_phases_of_a_start_are_on_the_page_in_their_order() -> None:
    told = re.findall(r"^\| `(\w+)` \|", _page("start-up.md").split("\n## ")[0], re.MULTILINE)
    assert told == list(StartPhase)


def test_a_description_that_says_another_default_than_the_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(BaseModel):
        seconds: int = Field(7, description="Time to wait. Default: 5.")

    monkeypatch.setattr("docs.resource_page.Spec", Wrong)
    with pytest.raises(DefaultMismatch, match=r"spec\.seconds: the description says 5, the type 7"):
        resource_page()


def test_a_cell_keeps_its_bars_and_lines_to_itself() -> None:
    assert table(("a",), [("x|y\nz",)]) == "| a |\n| --- |\n| x\\|y z |\n"


def test_a_readme_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="markers"):
        with_values_table("# x\n", "{}", '{"properties": {}}')
