"""KEDA's real operator and metrics server beside an API server, compiled once from its Go module.

Of its 72 kinds of scalers only the external one is compiled: the others and what they speak to are half of the build.
All else is as KEDA has it.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import yaml

from e2e.cluster.binaries import cache_folder, content_key, go_build, go_module
from e2e.cluster.box import Box
from e2e.cluster.locks import built_once
from tests.pagefleet_operator.apiserver.aggregation import API_SERVICES, served
from tests.pagefleet_operator.apiserver.api import Api, ApiRefusal, Json, eventually
from tests.ports import free_port

MODULE = "github.com/kedacore/keda/v2@v2.21.0"
NAMESPACE = "keda"
SCALED_OBJECTS = "/apis/keda.sh/v1alpha1/namespaces/{}/scaledobjects"
METRICS = "/apis/external.metrics.k8s.io/v1beta1"
_FLAGS = ("-mod=mod", "-buildvcs=false", "-ldflags", "-s -w")
_KEPT = ("external_scaler.go", "external_mock_scaler.go")
_CASE = re.compile(r"(?m)^\tcase \"(?!external).*\n(?:\t\t.*\n|\t//.*\n)*")
_SHARED = 'package scalers\n\nconst externalMetricType = "External"\n'
"""What the external scaler takes from a file of another one."""
_CERTIFICATE = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "7")
_NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"
_START_LIMIT_S = 90.0


@contextmanager
def running(box: Box, folder: Path) -> Iterator[Path]:
    """Both while they run; the folder of their logs."""
    api, metrics_port, service_port = Api(box.kubeconfig), free_port(), free_port()
    certificates = _certificates(folder / "certificates")
    _install(api, metrics_port)
    operator = [
        *("--metrics-bind-address=0", "--health-probe-bind-address=0", f"--cert-dir={certificates}"),
        f"--metrics-service-bind-address=127.0.0.1:{service_port}",
    ]
    adapter = [
        *(f"--secure-port={metrics_port}", f"--port={free_port()}", f"--cert-dir={certificates}"),
        *(f"--tls-cert-file={certificates / 'tls.crt'}", f"--tls-private-key-file={certificates / 'tls.key'}"),
        *(f"--{each}-kubeconfig={box.kubeconfig}" for each in ("authentication", "authorization", "lister")),
        f"--metrics-service-address=localhost:{service_port}",
    ]
    environment = {**os.environ, "KUBECONFIG": str(box.kubeconfig), "WATCH_NAMESPACE": ""}
    environment |= {"POD_NAMESPACE": NAMESPACE, "KEDA_CLUSTER_OBJECT_NAMESPACE": NAMESPACE}
    with ExitStack() as stack:
        for name, flags in (("operator", operator), ("adapter", adapter)):
            command = [str(_programs() / name), *flags]
            stack.enter_context(_process(command, environment, folder / f"keda-{name}.log"))
        eventually(lambda: served(api, METRICS), f"KEDA serves its metrics, see {folder}", _START_LIMIT_S)
        yield folder


@contextmanager
def _process(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=30)


def _install(api: Api, port: int) -> None:
    """Its CRDs, and its APIService, whose Service is a name for this host."""
    for path in sorted((_module() / "config/crd/bases").glob("*.yaml")):
        api.create("customresourcedefinitions", yaml.safe_load(path.read_text(encoding="utf-8")))
    api.create("namespaces", {"metadata": {"name": NAMESPACE}})
    outside = {"type": "ExternalName", "externalName": "localhost"}
    api.create("services", {"metadata": {"name": "keda-metrics", "namespace": NAMESPACE}, "spec": outside})
    spec: Json = {"group": "external.metrics.k8s.io", "version": "v1beta1", "insecureSkipTLSVerify": True}
    spec |= {"groupPriorityMinimum": 100, "versionPriority": 100}
    spec["service"] = {"name": "keda-metrics", "namespace": NAMESPACE, "port": port}
    api.call("POST", API_SERVICES, {"metadata": {"name": "v1beta1.external.metrics.k8s.io"}, "spec": spec})
    eventually(lambda: _listed(api), "ScaledObjects are served", 60)


def _listed(api: Api) -> bool:
    try:
        return "items" in api.call("GET", SCALED_OBJECTS.format(NAMESPACE))
    except (ApiRefusal, ValueError):
        return False


def _certificates(folder: Path) -> Path:
    """What both show each other and trust, one self-signed certificate."""
    folder.mkdir()
    files = ("-keyout", "tls.key", "-out", "tls.crt", "-subj", "/CN=localhost")
    uses = ("-addext", _NAMES, "-addext", "extendedKeyUsage=serverAuth,clientAuth")
    subprocess.run(["openssl", *_CERTIFICATE, *files, *uses], cwd=folder, check=True, capture_output=True)
    shutil.copy(folder / "tls.crt", folder / "ca.crt")
    return folder


@cache
def _module() -> Path:
    return go_module(MODULE)


@cache
def _programs() -> Path:
    """The folder of `operator` and `adapter`."""
    folder = cache_folder() / "bin" / f"keda-{content_key({}, MODULE, _CASE.pattern, _SHARED, *_FLAGS)}"
    return built_once(folder, _build)


def _build(folder: Path) -> None:
    sources = _sources(folder.with_suffix(".sources"))
    go_build([*_FLAGS, "-o", f"{folder}/", "./cmd/operator", "./cmd/adapter"], sources, tell=lambda _: None)
    shutil.rmtree(sources)


def _sources(folder: Path) -> Path:
    """A copy of the module whose one kind of scaler is the external one."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(_module(), folder, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns("*_test.go"))
    for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        path.chmod(0o755)  # the cache of modules is read-only
    for path in (folder / "pkg/scalers").glob("*_scaler.go"):
        if path.name not in _KEPT:
            path.unlink()
    (folder / "pkg/scalers/shared.go").write_text(_SHARED, encoding="utf-8")
    builder = folder / "pkg/scaling/scalers_builder.go"
    builder.write_text(_CASE.sub("", builder.read_text(encoding="utf-8")), encoding="utf-8")
    return folder
