"""One cluster, one chart and one Prometheus for all stories; a namespace for each file of stories."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from e2e import diagnosis, lanes, release
from e2e.cluster.locks import locked
from e2e.footprint import Footprint
from e2e.kubectl import Json, Kubectl
from e2e.operator_pods import Operator
from e2e.progress import Progress, ToolFailed
from e2e.prometheus import Prometheus
from e2e.sites import BoxSite, state_folder

SCRAPE_INTERVAL_S = 1
LOGS = state_folder() / "e2e-logs"
_failed = pytest.StashKey[bool]()
_before = pytest.StashKey[Footprint]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Remember on a file of stories that one failed, for its namespace's teardown."""
    report = yield
    module = item.getparent(pytest.Module)
    if report.failed and module is not None:  # type: ignore[attr-defined]
        module.stash[_failed] = True
    return report


class _ByLane(LoadScopeScheduling):  # type: ignore[misc]  # xdist tells mypy nothing
    """A lane's stories are told by one process."""

    def _split_scope(self, nodeid: str) -> str:
        return lanes.lane(Path(nodeid.partition("::")[0]).stem)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # the lanes' order is the better one
    return _ByLane(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Within a lane, and where there is one process, the stories come in the lanes' order."""
    items.sort(key=lambda item: lanes.order(item.path.stem))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Note how this machine was, in the one process that outlives all others."""
    if not hasattr(session.config, "workerinput") and not BoxSite.here().box.alive():
        session.config.stash[_before] = Footprint.of_host()


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Stop what the stories started, whoever started it and however that process ended."""
    yield  # no process that tells stories is left
    if hasattr(session.config, "workerinput"):
        return
    _prometheus().stop()
    before, box = session.config.stash.get(_before, None), BoxSite.here().box
    if before is None or not box.folders.root.exists():
        return
    box.down()
    left = before.left_by(box, Footprint.of_host())
    if left:
        session.config.get_terminal_writer().line("the cluster left something behind:\n" + "\n".join(left), red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _once(what: str, run: str, start: Callable[[], None]) -> None:
    """Start something for all processes of this run: the first one does, the others wait for it."""
    folder = state_folder() / "e2e-start" / what
    with locked(folder):
        started_for = folder / "run"
        if not started_for.exists() or started_for.read_text() != run:
            start()
            started_for.write_text(run)


@pytest.fixture(scope="session")
def place(request: pytest.FixtureRequest, testrun_uid: str) -> BoxSite:
    """A running cluster with the chart; whoever comes first starts it, and one that ran before is left running."""
    site = BoxSite.here()
    try:
        _once("cluster", testrun_uid, lambda: _bring_up(site))
    except ToolFailed as error:  # without a cluster no story can be told
        request.session.shouldstop = _why_not(site, error)
        raise
    return site


def _bring_up(site: BoxSite) -> None:
    progress = Progress()
    names = site.bring_up(progress)
    with progress.step("Helm installs the chart"):
        release.install(site, names, more={"nodeCache": release.NODE_CACHE})


def _why_not(site: BoxSite, error: ToolFailed) -> str:
    kept = LOGS / "cluster"
    if site.box.folders.log.is_dir():
        shutil.copytree(site.box.folders.log, kept, dirs_exist_ok=True)
    known = diagnosis.cause(site.kubectl) if site.box.alive() else ""
    return f"no cluster (its logs are in {kept}): {error}\n{known}"


def _prometheus() -> Prometheus:
    return Prometheus(state_folder() / "e2e-prometheus", "127.0.0.1:16491")


@pytest.fixture(scope="session")
def prometheus(place: BoxSite, testrun_uid: str) -> Prometheus:
    """A Prometheus that scrapes every engine and operator pod each second."""
    server = _prometheus()

    def start() -> None:
        server.stop()
        server.start(Path(place.kubectl.kubeconfig), SCRAPE_INTERVAL_S)

    _once("prometheus", testrun_uid, start)
    return server


@pytest.fixture(scope="session")
def operator(place: BoxSite) -> Operator:
    return Operator(place)


def _namespace(name: str) -> Json:
    rules = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": rules}}


@pytest.fixture(scope="module")
def kubectl(place: BoxSite, request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    """kubectl in a namespace of the file's own, where only pods under the restricted standard may run."""
    name = request.module.__name__.rpartition(".")[2].removeprefix("test_").replace("_", "-")
    place.kubectl.run("delete", "namespace", name, "--ignore-not-found", timeout_s=180)
    place.kubectl.apply(json.dumps(_namespace(name)))
    own = place.kubectl.within(name)
    yield own
    if request.node.stash.get(_failed, False):
        diagnosis.dump(own, LOGS / name)
    place.kubectl.run("delete", "namespace", name, "--wait=false")
