"""What a person would look at first when something on the cluster went wrong."""

from collections.abc import Iterator
from pathlib import Path

from e2e.kubectl import Kubectl
from e2e.service import KIND

SYSTEM_NAMESPACE = "pagefleet-system"
_TIMEOUT_S = 30
_BY_TIME = "--sort-by=.metadata.creationTimestamp"


def _answers(kubectl: Kubectl, *argv: str) -> str:
    try:
        result = kubectl.attempt(*argv, timeout_s=_TIMEOUT_S)
    except Exception as error:  # a diagnosis must not hide the fault that it is for
        return f"{type(error).__name__}: {error}"
    return (result.stdout + result.stderr).rstrip()


def sections(kubectl: Kubectl, log_lines: int) -> Iterator[tuple[str, str]]:
    """(title, text) of the namespace's resources, pods, events and logs, and of the operator's."""
    system = kubectl.within(SYSTEM_NAMESPACE)
    yield "resources", _answers(kubectl, "get", KIND, "-o", "wide")
    yield "pods", _answers(kubectl, "get", "pods", "-o", "wide")
    yield "operator pods", _answers(system, "get", "pods", "-o", "wide")
    yield "events", _answers(kubectl, "get", "events", "--field-selector=involvedObject.kind!=Node", _BY_TIME)
    yield "status", _answers(kubectl, "get", KIND, "-o", "yaml")
    tail = f"--tail={log_lines}"
    for name in _answers(system, "get", "pods", "-o", "name").split():
        if name.startswith("pod/"):
            yield f"log of {name}", _answers(system, "logs", name, tail, "--all-containers")
            yield f"log of {name} before its restart", _answers(system, "logs", name, tail, "--previous")
    for name in _answers(kubectl, "get", "pods", "-o", "name").split():
        if name.startswith("pod/"):
            yield f"log of {name}", _answers(kubectl, "logs", name, tail, "--all-containers")
            yield f"log of {name} before its restart", _answers(kubectl, "logs", name, tail, "--previous")


def cause(kubectl: Kubectl, log_lines: int = 12) -> str:
    """All of it as one text, without what is empty."""
    parts = [(t, text) for t, text in sections(kubectl, log_lines) if t != "status" and _worth_reading(text)]
    return "\n".join(f"--- {title}\n{text}" for title, text in parts)


def dump(kubectl: Kubectl, folder: Path) -> None:
    """Write everything below `folder`, one file a section."""
    folder.mkdir(parents=True, exist_ok=True)
    for title, text in sections(kubectl, log_lines=2000):
        if _worth_reading(text):
            (folder / f"{title.replace('/', '-').replace(' ', '-')}.txt").write_text(text + "\n")


def _worth_reading(text: str) -> bool:
    return bool(text) and "previous terminated container" not in text and not text.startswith("No resources found")
