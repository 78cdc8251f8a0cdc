"""The configuration files and objects of a box, rendered from a layout. Pure."""

import base64
import json
from pathlib import Path
from typing import Any

from e2e.cluster.layout import Folders, Layout, NodeLayout

CONTAINERD_SOCKET = "/run/ctd/containerd.sock"
PAUSE_IMAGE = "localhost/pagefleet-pause:dev"

Json = dict[str, Any]


def kubeconfig(layout: Layout, authority: bytes, certificate: bytes, key: bytes) -> str:
    """One user's credentials, embedded, so that the file can be handed on alone. PEM in, JSON (hence YAML) out."""

    def data(pem: bytes) -> str:
        return base64.b64encode(pem).decode()

    cluster = {"server": layout.api_url, "certificate-authority-data": data(authority)}
    user = {"client-certificate-data": data(certificate), "client-key-data": data(key)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "pagefleet-box",
        "contexts": [{"name": "pagefleet-box", "context": {"cluster": "box", "user": "box"}}],
        "clusters": [{"name": "box", "cluster": cluster}],
        "users": [{"name": "box", "user": user}],
    }
    return json.dumps(document, indent=1)


UNUSED_SNAPSHOTTERS = [f"io.containerd.snapshotter.v1.{name}" for name in ("aufs", "btrfs", "devmapper", "zfs")]
# the optional-software plugin makes a folder on the host
UNUSED_PLUGINS = ["io.containerd.internal.v1.opt", *UNUSED_SNAPSHOTTERS]


def unpacking_containerd(root: Path, state: Path) -> str:
    """A containerd that only unpacks images, with its socket in `state`."""
    return f"""\
version = 2
root = "{root}"
state = "{state}"
oom_score = 0
disabled_plugins = {json.dumps(["io.containerd.grpc.v1.cri", *UNUSED_PLUGINS])}
[grpc]
  address = "{state}/containerd.sock"
"""


def containerd(node: NodeLayout, folders: Folders) -> str:
    """For Debian's containerd 1.6; a 2.x takes it too. It may not lower an oom score, and writes nowhere else."""
    home = folders.node(node.name)
    return f"""\
version = 2
root = "{home}/containerd"
state = "/run/ctd"
oom_score = 0
disabled_plugins = {json.dumps(UNUSED_PLUGINS)}
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{home}/registries"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{home}/cni.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def plain_registry(registry: str) -> str:
    """containerd's `hosts.toml` for a registry (host:port) without a certificate. It is read at every pull."""
    return f"""\
server = "http://{registry}"
[host."http://{registry}"]
  capabilities = ["pull", "resolve"]
"""


def pod_network(node: NodeLayout) -> Json:
    """The CNI configuration: pods hang on a bridge in the node and are routed, never masqueraded."""
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni-addresses",
        "ranges": [[{"subnet": node.pod_cidr}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": addresses,
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "box", "plugins": [bridge, ports]}


def kubelet(node: NodeLayout, folders: Folders) -> Json:
    """Control groups by cgroupfs under the box's own group (no systemd), no rlimit or oom score raised."""
    pki, home = folders.pki, folders.node(node.name)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{pki}/{node.name}-serving.crt",
        "tlsPrivateKeyFile": f"{pki}/{node.name}-serving.key",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "clusterDNS": [node.box.dns_service_address],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{home}/resolv.conf",
        "oomScoreAdj": 0,
        "maxOpenFiles": 20000,
        "maxPods": 200,
        "registryPullQPS": 0,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "nodeStatusUpdateFrequency": "2s",
        "nodeStatusReportFrequency": "10s",
        "shutdownGracePeriod": "0s",
        "volumePluginDir": f"{home}/volume-plugins",
    }


def corefile(layout: Layout, folders: Folders) -> str:
    return f"""\
.:53 {{
  bind {layout.host_address}
  errors
  ready 127.0.0.1:{layout.dns_ready_port}
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {folders.kubeconfig("admin")}
    pods insecure
    ttl 5
  }}
  cache 5
}}
"""


def dns_objects(layout: Layout) -> list[tuple[str, Json]]:
    """(API path, object) of the Service that leads to the DNS server on the host. It has no pods to select."""
    protocols = ("UDP", "TCP")
    namespace = "/namespaces/kube-system"
    ports = [{"name": f"dns-{protocol.lower()}", "port": 53, "protocol": protocol} for protocol in protocols]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {"clusterIP": layout.dns_service_address, "ports": ports},
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kube-dns-host",
            "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": "kube-dns"},
        },
        "addressType": "IPv4",
        "ports": ports,
        "endpoints": [{"addresses": [layout.host_address], "conditions": {"ready": True}}],
    }
    return [
        (f"/api/v1{namespace}/services/kube-dns", service),
        (f"/apis/discovery.k8s.io/v1{namespace}/endpointslices/kube-dns-host", endpoints),
    ]
