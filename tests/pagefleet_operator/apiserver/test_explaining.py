"""`pagefleet explain` against a real API server and a real operator."""

import json
import os
import subprocess
import sys

import pytest

from e2e.cluster.box import Box
from tests.pagefleet_operator.apiserver.api import Api, Json, eventually
from tests.pagefleet_operator.apiserver.conftest import Start
from tests.pagefleet_operator.apiserver.fleet import Fleet
from tests.pagefleet_operator.apiserver.operators import service

pytestmark = pytest.mark.apiserver

_SCALED = {
    "minReplicas": 1,
    "maxReplicas": 3,
    "metrics": [{"type": "WaitingRequests", "target": {"averageValue": "4"}}],
}


def _explain(box: Box, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment["KUBECONFIG"] = str(box.kubeconfig)
    command = [sys.executable, "-m", "pagefleet_cli", "explain", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


def test_the_operator_tells_what_moves_the_number_and_without_it_the_status_does(
    box: Box, api: Api, namespace: str, start: Start
) -> None:
    operator = start().ready()
    with Fleet(api, namespace) as fleet:
        api.create("inferenceservices", service(namespace, autoscaling=_SCALED))
        eventually(lambda: len(fleet.serving()) == 1, "one pod serves")
        path = f"/decisions?namespace={namespace}&name=s"
        eventually(lambda: '"Steady"' in operator.get(path)[1], "the number is calm")
        asked = _explain(
            box, "infs/s", "-n", namespace, "-o", "json", "--operator-url", f"http://127.0.0.1:{operator.port}"
        )
        assert asked.returncode == 0, asked.stderr
        found: Json = json.loads(asked.stdout)
        assert (found["source"], found["decision"]["desired"]) == ("operator", 1)
        assert found["nextSteps"]["up"][0]["type"] == "WaitingRequests"
        assert found["nextSteps"]["up"][0]["limit"] == pytest.approx(4.4)
        assert found["nextSteps"]["downHeldBy"] == ["minReplicas is 1"]

        # The lease's holder is no pod here, so the API server has no way to it.
        alone = _explain(box, "s", "-n", namespace)
        assert alone.returncode == 0, alone.stderr
        assert f"{namespace}/s: 1 wanted, 1 ready" in alone.stdout
        assert 'told by its status, as the operator could not be asked: pods "operator-0" not found' in alone.stdout

    missing = _explain(box, "infs/other", "-n", namespace)
    assert missing.returncode == 2
    assert f"there is no InferenceService {namespace}/other" in missing.stderr
