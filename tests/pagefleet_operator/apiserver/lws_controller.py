"""LWS' real controller beside an API server: compiled once, with its webhooks on this machine's own address."""

import base64
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.binaries import cache_folder, content_key, go_build
from e2e.cluster.box import Box
from e2e.cluster.locks import built_once
from tests.pagefleet_operator.apiserver import lws
from tests.pagefleet_operator.apiserver.api import Api, Json, eventually

_WEBHOOKS = "config/webhook/manifests.yaml"
_MARK = "leaderworkerset.sigs.k8s.io/name"
"""Label of LWS' pods: its own installation asks its webhooks about no others."""
_FLAGS, _NAME = ("-buildvcs=false",), "lws-manager"


def binary() -> Path:
    """The controller; three minutes of a core unless it is cached."""
    folder = cache_folder() / "bin" / f"lws-{content_key({}, lws.MODULE, *_FLAGS)}"
    return built_once(folder, _build) / _NAME


def _build(folder: Path) -> None:
    go_build([*_FLAGS, "-o", str(folder / _NAME), "./cmd"], lws.folder(), tell=lambda _: None)


@contextmanager
def running(box: Box, folder: Path, webhook_port: int, health_port: int) -> Iterator[Path]:
    """The controller while it runs; its log."""
    api, log, certificates = Api(box.kubeconfig), folder / "lws.log", folder / "lws-certificates"
    certificates.mkdir()
    for suffix in ("crt", "key"):  # the API server's own are valid for this address
        (certificates / f"tls.{suffix}").write_bytes((box.folders.pki / f"apiserver.{suffix}").read_bytes())
    configuration = folder / "lws.yaml"
    configuration.write_text(yaml.safe_dump(_configuration(certificates, webhook_port, health_port)))
    lws.install(api)
    environment = {**os.environ, "KUBECONFIG": str(box.kubeconfig)}
    with log.open("w") as output:
        command = [str(binary()), f"--config={configuration}"]
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            eventually(lambda: "Serving webhook server" in log.read_text(), f"LWS serves: {log}", 60)
            authority = (box.folders.pki / "ca.crt").read_bytes()
            for plural, manifest in _webhooks(authority, webhook_port):
                api.create(plural, manifest)
            yield log
        finally:
            for plural, manifest in _webhooks(b"", webhook_port):
                api.delete(plural, None, manifest["metadata"]["name"])
            process.terminate()
            process.wait(timeout=30)


def _configuration(certificates: Path, webhook_port: int, health_port: int) -> Json:
    return {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "port": webhook_port, "certDir": str(certificates)},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health_port}"},
        "metrics": {"bindAddress": "0"},
    }


def _webhooks(authority: bytes, port: int) -> Iterator[tuple[str, Json]]:
    """LWS' own configurations of them, with an address in place of its Service."""
    for manifest in yaml.safe_load_all(Path(lws.folder(), _WEBHOOKS).read_text(encoding="utf-8")):
        webhooks = [_at(webhook, authority, port) for webhook in manifest["webhooks"]]
        yield f"{manifest['kind'].lower()}s", {**manifest, "metadata": {"name": "lws"}, "webhooks": webhooks}


def _at(webhook: Json, authority: bytes, port: int) -> Json:
    path = webhook["clientConfig"]["service"]["path"]
    client = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": base64.b64encode(authority).decode()}
    about_pods = any("pods" in rule["resources"] for rule in webhook["rules"])
    chosen: dict[str, Any] = {"matchExpressions": [{"key": _MARK, "operator": "Exists"}]} if about_pods else {}
    return {**webhook, "clientConfig": client, "objectSelector": chosen}
