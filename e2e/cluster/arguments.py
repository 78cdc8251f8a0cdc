"""The command line of every component, rendered from a layout. Pure: equal input, equal arguments."""

from pathlib import Path

from e2e.cluster.layout import Folders, Layout, NodeLayout

API_RATE = ("--kube-api-qps=300", "--kube-api-burst=500")


def etcd(layout: Layout, folders: Folders) -> list[str]:
    """Never fsyncs: the data need not survive a power loss, and it is most of a write's time here."""
    client, peer = (f"http://127.0.0.1:{port}" for port in (layout.etcd_port, layout.etcd_peer_port))
    return [
        "etcd", "--name=box", f"--data-dir={folders.etcd}", "--unsafe-no-fsync", "--log-level=warn",
        f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=box={peer}",
    ]  # fmt: skip


def api_server(layout: Layout, folders: Folders) -> list[str]:
    """Listens on the host's address in the box alone, so that no other network reaches it."""
    pki = folders.pki
    return [
        "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{layout.etcd_port}",
        f"--bind-address={layout.host_address}", f"--secure-port={layout.api_port}",
        f"--advertise-address={layout.host_address}",
        # a loopback address is no valid endpoint of the `kubernetes` Service
        *(["--endpoint-reconciler-type=none"] if layout.bridge is None else []),
        f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt",
        f"--kubelet-client-key={pki}/kubelet-client.key",
        f"--kubelet-certificate-authority={pki}/ca.crt", "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={pki}/accounts.pub",
        f"--service-account-signing-key-file={pki}/accounts.key",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        # an aggregated API (custom or external metrics) needs the front proxy's identity
        f"--requestheader-client-ca-file={pki}/front.crt", "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki}/front-client.crt", f"--proxy-client-key-file={pki}/front-client.key",
        "--enable-aggregator-routing=true",
        "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
        f"--service-cluster-ip-range={layout.service_cidr}", "--profiling=false", "--v=1",
    ]  # fmt: skip


def _kubeconfigs(path: Path) -> list[str]:
    return [f"--{use}={path}" for use in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")]


def controller_manager(layout: Layout, folders: Folders) -> list[str]:
    """Looks at nodes and autoscalers more often than by default: a test waits for both."""
    pki = folders.pki
    return [
        "kube-controller-manager", *_kubeconfigs(folders.kubeconfig("controllers")),
        "--bind-address=127.0.0.1", f"--secure-port={layout.controllers_port}",
        f"--service-account-private-key-file={pki}/accounts.key", f"--root-ca-file={pki}/ca.crt",
        "--use-service-account-credentials=true", "--leader-elect=false",
        f"--cluster-signing-cert-file={pki}/ca.crt", f"--cluster-signing-key-file={pki}/ca.key",
        "--allocate-node-cidrs=false", f"--cluster-cidr={layout.pods_cidr}",
        "--horizontal-pod-autoscaler-sync-period=5s",
        "--node-monitor-period=2s", "--node-monitor-grace-period=20s", *API_RATE, "--v=1",
    ]  # fmt: skip


def scheduler(layout: Layout, folders: Folders) -> list[str]:
    return [
        "kube-scheduler", *_kubeconfigs(folders.kubeconfig("scheduler")),
        "--bind-address=127.0.0.1", f"--secure-port={layout.scheduler_port}",
        "--leader-elect=false", *API_RATE, "--v=1",
    ]  # fmt: skip


def coredns(corefile: Path) -> list[str]:
    return ["-conf", str(corefile)]


def kube_proxy(node: NodeLayout, folders: Folders) -> list[str]:
    """`--cluster-cidr` masquerades what comes from outside the pods, so that the replies come back the same way."""
    return [
        "kube-proxy", f"--kubeconfig={folders.kubeconfig('proxy')}", f"--hostname-override={node.name}",
        "--proxy-mode=iptables", f"--cluster-cidr={node.box.pods_cidr}",
        # these would write sysctls that belong to the host
        "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
        "--metrics-bind-address=127.0.0.1:10249", "--v=1",
    ]  # fmt: skip


def kubelet(node: NodeLayout, folders: Folders) -> list[str]:
    home = folders.node(node.name)
    return [
        "kubelet", f"--config={home}/kubelet.json", f"--kubeconfig={folders.kubeconfig(node.name)}",
        "--root-dir=/var/lib/kubelet", f"--cert-dir={home}/certificates",
        f"--hostname-override={node.name}", f"--node-ip={node.address}", "--v=2",
    ]  # fmt: skip


def private_mounts(command: list[str]) -> list[str]:
    """Whatever it mounts is gone with it, and it is gone with whoever kills this process."""
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", *command]


def namespaces(init: list[str]) -> list[str]:
    """A node: whoever kills this one process ends every process, mount and interface in it."""
    return ["unshare", "--mount", "--pid", "--net", "--uts", "--fork", "--kill-child=KILL", *init]
