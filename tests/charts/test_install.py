"""The chart against a real API server: installing, upgrading, uninstalling."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.cluster.box import Box
from tests.charts.helm import CHART, NAMESPACE, render
from tests.charts.install_rig import CRD, SERVICE, api_server, helm_on, install

pytestmark = pytest.mark.apiserver


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with api_server(tmp_path_factory.mktemp("chart"), 1) as box:
        yield box


@pytest.fixture
def release(box: Box) -> Iterator[Box]:
    """The box, given back without release and CRD."""
    yield box
    helm_on(box, "uninstall", "pagefleet", "--ignore-not-found", "--cascade=orphan")
    box.kubectl("delete", "crd", CRD, "--ignore-not-found", "--wait=true")


def _chart_without_drain(folder: Path) -> Path:
    """An older chart: its CRD knows no `spec.drain`."""
    older = Path(shutil.copytree(CHART, folder / "older"))
    path = older / "files" / "inferenceservices.yaml"
    crd = yaml.safe_load(path.read_text())
    del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["drain"]
    path.write_text(yaml.safe_dump(crd))
    return older


@pytest.mark.parametrize("settings", [[], ["--set", "watchNamespaces={default}"], ["--set", "replicas=2"]])
def test_the_api_server_takes_every_object_without_a_warning(release: Box, settings: list[str]) -> None:
    release.kubectl("create", "namespace", NAMESPACE)
    objects = yaml.safe_dump_all(render(*settings))
    result = release.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=objects)
    assert (result.returncode, result.stderr) == (0, "")


def test_an_install_ends_with_the_next_commands_and_serves_the_resource(release: Box) -> None:
    notes = install(release, CHART)
    assert f"kubectl -n {NAMESPACE} rollout status deployment/pagefleet-operator" in notes
    example = notes.split("<<'END'\n")[1].split("\nEND\n")[0]
    applied = release.kubectl("apply", "--validate=strict", "-f", "-", stdin=example)
    assert applied.returncode == 0, applied.stderr
    assert "smollm2" in release.kubectl("get", "infs").stdout


def test_an_upgrade_brings_the_new_fields_of_the_crd(release: Box, tmp_path: Path) -> None:
    install(release, _chart_without_drain(tmp_path))
    refused = release.kubectl("apply", "--validate=strict", "-f", "-", stdin=SERVICE)
    assert 'unknown field "spec.drain"' in refused.stderr

    install(release, CHART)
    applied = release.kubectl("apply", "--validate=strict", "-f", "-", stdin=SERVICE)
    assert applied.returncode == 0, applied.stderr
    seconds = release.kubectl("get", "infs", "smollm2", "-o", "jsonpath={.spec.drain.timeoutSeconds}")
    assert seconds.stdout == "7"


@pytest.mark.parametrize(("keep", "left"), [("true", 1), ("false", 0)])
def test_uninstalling_leaves_the_services_where_the_crd_is_kept(release: Box, keep: str, left: int) -> None:
    install(release, CHART, "--set", f"crds.keep={keep}")
    release.kubectl("apply", "-f", "-", stdin=SERVICE)
    helm_on(release, "uninstall", "pagefleet", "--wait", "--timeout=20s")
    services = release.kubectl("get", CRD, "-A", "-o", "name").stdout.split()
    assert len(services) == left


def test_a_release_that_was_uninstalled_can_be_installed_again(release: Box) -> None:
    install(release, CHART)
    release.kubectl("apply", "-f", "-", stdin=SERVICE)
    helm_on(release, "uninstall", "pagefleet")
    install(release, CHART)
    assert "smollm2" in release.kubectl("get", "infs", "-o", "name").stdout
