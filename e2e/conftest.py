"""One cluster, one chart and one Prometheus for all stories; a namespace for each file of stories."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import diagnosis, release
from e2e.footprint import Footprint
from e2e.kubectl import Kubectl
from e2e.operator_pods import Operator
from e2e.progress import Progress, ToolFailed
from e2e.prometheus import Prometheus
from e2e.sites import BoxSite, state_folder

SCRAPE_INTERVAL_S = 1
NODE_CACHE = {"enabled": True, "path": "/run/pagefleet/models"}
"""On a disk of the nodes' own: whatever else they have is the machine's, which they share."""
LOGS = state_folder() / "e2e-logs"
_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Remember on a file of stories that one failed, for its namespace's teardown."""
    report = yield
    module = item.getparent(pytest.Module)
    if report.failed and module is not None:  # type: ignore[attr-defined]
        module.stash[_failed] = True
    return report


@pytest.fixture(scope="session")
def place() -> Iterator[BoxSite]:
    """A running cluster with the chart; one that ran before is used and left running."""
    site = BoxSite.here()
    before = None if site.box.alive() else Footprint.of_host()
    try:
        _bring_up(site)
        yield site
    finally:
        if before is not None:
            site.box.down()
    if before is not None:
        assert before.left_by(site.box, Footprint.of_host()) == [], "the cluster left something behind"


def _bring_up(site: BoxSite) -> None:
    """Without a cluster no story can be told: the reason is said once, and the run ends."""
    progress = Progress()
    try:
        names = site.bring_up(progress)
        with progress.step("Helm installs the chart"):
            release.install(site, names, more={"nodeCache": NODE_CACHE})
    except ToolFailed as error:
        kept = LOGS / "cluster"
        if site.box.folders.log.is_dir():
            shutil.copytree(site.box.folders.log, kept, dirs_exist_ok=True)
        known = diagnosis.cause(site.kubectl) if site.box.alive() else ""
        pytest.exit(f"no cluster (its logs are in {kept}): {error}\n{known}", returncode=1)


@pytest.fixture(scope="session")
def prometheus(place: BoxSite) -> Iterator[Prometheus]:
    """A Prometheus that scrapes every engine and operator pod each second."""
    server = Prometheus(state_folder() / "e2e-prometheus", "127.0.0.1:16491")
    server.stop()
    server.start(Path(place.kubectl.kubeconfig), SCRAPE_INTERVAL_S)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def operator(place: BoxSite) -> Operator:
    return Operator(place)


@pytest.fixture(scope="module")
def kubectl(place: BoxSite, request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    """kubectl in a namespace of the file's own, where only pods under the restricted standard may run."""
    name = request.module.__name__.rpartition(".")[2].removeprefix("test_").replace("_", "-")
    place.kubectl.run("delete", "namespace", name, "--ignore-not-found", timeout_s=180)
    place.kubectl.run("create", "namespace", name)
    place.kubectl.run("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    own = place.kubectl.within(name)
    yield own
    if request.node.stash.get(_failed, False):
        diagnosis.dump(own, LOGS / name)
    place.kubectl.run("delete", "namespace", name, "--wait=false")
