"""Layouts and what is rendered from them."""

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.cluster import arguments, configuration, control, node, pki
from e2e.cluster.layout import API_SERVER_ONLY, CLUSTER, MAX_NODES, PORTS, SELF_TEST, Folders, Layout

FOLDERS = Folders(Path("/state/cluster"))
NODE = CLUSTER.node("node1")


def values(argv: list[str], flag: str) -> list[str]:
    return [word.partition("=")[2] for word in argv if word.startswith(f"--{flag}=")]


@given(
    st.builds(
        Layout,
        bridge=st.none() | st.just("x0"),
        node_network=st.just("10.1.2"),
        first_port=st.integers(1024, 60000),
    )
)
def test_a_layout_survives_its_way_to_disk_and_back(layout: Layout) -> None:
    assert Layout.parse(layout.dump()) == layout


@pytest.mark.parametrize("text", ["", "[]", "{}x", '{"bridge": "b", "colour": 1}'])
def test_a_file_that_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        Layout.parse(text)


def test_ready_made_layouts_share_neither_ports_nor_networks_nor_names() -> None:
    layouts = (CLUSTER, API_SERVER_ONLY, SELF_TEST)
    ports = [port for layout in layouts for port in range(layout.first_port, layout.first_port + PORTS)]
    assert len(set(ports)) == len(ports)
    with_nodes = (CLUSTER, SELF_TEST)
    assert len({layout.bridge for layout in with_nodes}) == 2
    networks = [(layout.node_network, layout.pod_network, layout.service_network) for layout in with_nodes]
    assert len({network for triple in networks for network in triple}) == 6


def test_every_port_of_a_layout_is_within_its_run() -> None:
    layout = CLUSTER
    used = {
        layout.api_port,
        layout.etcd_port,
        layout.etcd_peer_port,
        layout.controllers_port,
        layout.scheduler_port,
        layout.dns_ready_port,
    }
    assert used == set(range(layout.first_port, layout.first_port + PORTS))


@pytest.mark.parametrize("layout", [CLUSTER, SELF_TEST])
def test_interface_names_fit_the_kernel_and_differ(layout: Layout) -> None:
    names = [str(layout.bridge), *(layout.node(f"node{n}").host_interface for n in range(1, MAX_NODES + 1))]
    assert all(len(name) <= 15 for name in names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["node0", "node4", "node", "master"])
def test_only_the_numbered_nodes_exist(name: str) -> None:
    with pytest.raises(KeyError):
        CLUSTER.node(name)


def test_a_node_routes_to_each_other_node() -> None:
    assert [other.name for other in NODE.neighbours] == ["node2", "node3"]
    assert [other.pod_cidr for other in NODE.neighbours] == ["10.201.2.0/24", "10.201.3.0/24"]


@pytest.mark.parametrize("layout", [CLUSTER, API_SERVER_ONLY])
def test_the_api_server_listens_in_the_box_alone(layout: Layout) -> None:
    argv = arguments.api_server(layout, FOLDERS)
    assert values(argv, "bind-address") == [layout.host_address] != ["0.0.0.0"]
    assert layout.api_url == f"https://{layout.host_address}:{values(argv, 'secure-port')[0]}"


def test_only_a_loopback_server_publishes_no_endpoint_of_itself() -> None:
    assert values(arguments.api_server(API_SERVER_ONLY, FOLDERS), "endpoint-reconciler-type") == ["none"]
    assert values(arguments.api_server(CLUSTER, FOLDERS), "endpoint-reconciler-type") == []


def test_every_component_has_a_command_and_none_names_a_flag_twice() -> None:
    commands = control.commands(CLUSTER, FOLDERS, Path("/bin-cache"))
    assert set(commands) == {*control.API, *control.CONTROLLERS, *control.DNS}
    for argv in [*commands.values(), arguments.kubelet(NODE, FOLDERS), arguments.kube_proxy(NODE, FOLDERS)]:
        flags = [word.partition("=")[0] for word in argv if word.startswith("--")]
        assert len(set(flags)) == len(flags)


def test_the_server_certificate_covers_every_way_to_the_api_server() -> None:
    server = next(made for made in pki.certificates(CLUSTER) if made.name == "apiserver")
    for name in ("IP:127.0.0.1", f"IP:{CLUSTER.host_address}", f"IP:{CLUSTER.api_service_address}", "DNS:kubernetes"):
        assert name in server.alternative_names
    assert "extendedKeyUsage=serverAuth" in server.extensions


def test_a_box_without_nodes_makes_no_node_certificates() -> None:
    names = {made.name for made in pki.certificates(API_SERVER_ONLY)}
    assert not any(name.startswith("node") for name in names)
    server = next(made for made in pki.certificates(API_SERVER_ONLY) if made.name == "apiserver")
    assert len(set(server.alternative_names)) == len(server.alternative_names)


def test_a_kubeconfig_embeds_its_credentials() -> None:
    document = json.loads(configuration.kubeconfig(CLUSTER, b"authority", b"certificate", b"key"))
    assert document["clusters"][0]["cluster"]["server"] == CLUSTER.api_url
    assert document["users"][0]["user"] == {"client-certificate-data": "Y2VydGlmaWNhdGU=", "client-key-data": "a2V5"}


def test_the_kubelet_stays_in_the_boxs_control_group_and_folders() -> None:
    kubelet = configuration.kubelet(NODE, FOLDERS)
    assert kubelet["cgroupRoot"] == "/pagefleet0/node1"
    paths = [kubelet["tlsCertFile"], kubelet["resolvConf"], kubelet["volumePluginDir"]]
    assert all(path.startswith(str(FOLDERS.root)) for path in paths)


def test_containerd_writes_into_the_nodes_folder_and_starts_the_boxs_pause_image() -> None:
    text = configuration.containerd(NODE, FOLDERS)
    assert f'root = "{FOLDERS.root}/node1/containerd"' in text
    assert f'sandbox_image = "{configuration.PAUSE_IMAGE}"' in text
    assert "io.containerd.internal.v1.opt" in text


def test_a_registry_without_a_certificate_is_asked_over_plain_http() -> None:
    assert f'config_path = "{FOLDERS.root}/node1/registries"' in configuration.containerd(NODE, FOLDERS)
    found = tomllib.loads(configuration.plain_registry("10.0.0.1:5000"))
    assert found["server"] == "http://10.0.0.1:5000"
    assert set(found["host"]) == {"http://10.0.0.1:5000"}
    tomllib.loads(configuration.containerd(NODE, FOLDERS))


def test_pods_get_the_nodes_own_addresses() -> None:
    bridge = configuration.pod_network(CLUSTER.node("node2"))["plugins"][0]
    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.201.2.0/24"}]]


def test_dns_has_a_fixed_service_that_leads_to_the_host() -> None:
    (_, service), (_, endpoints) = configuration.dns_objects(CLUSTER)
    assert service["spec"]["clusterIP"] == configuration.kubelet(NODE, FOLDERS)["clusterDNS"][0]
    assert endpoints["endpoints"][0]["addresses"] == [CLUSTER.host_address]
    assert f"bind {CLUSTER.host_address}" in configuration.corefile(CLUSTER, FOLDERS)


def test_a_nodes_programs_start_in_the_order_in_which_they_need_each_other() -> None:
    spec = node.specification(NODE, FOLDERS, Path("/bin-cache/hyperkube"))
    assert list(spec["commands"]) == ["node1-containerd", "node1-kube-proxy", "node1-kubelet"]
    assert spec["needs"] == {"node1-kubelet": configuration.CONTAINERD_SOCKET}
    assert spec["programs"] == "/bin-cache"
    assert json.loads(json.dumps(spec)) == spec
