from typing import Any

from pagefleet_operator.facts.knowledge import gpu_nodes

GPU = "nvidia.com/gpu"


def node(
    product: str | None = None, memory: str | None = None, *, has: str = "8", resource: str = GPU
) -> dict[str, Any]:
    told = {f"{resource}.product": product, f"{resource}.memory": memory}
    labels = {name: value for name, value in told.items() if value is not None}
    return {"metadata": {"labels": labels}, "status": {"allocatable": {resource: has}}}


def test_nodes_are_counted_by_the_type_that_their_labels_name() -> None:
    nodes = [node("NVIDIA-H200", "143771"), node("NVIDIA-H200", "143771"), node("NVIDIA-L4"), node()]
    found = gpu_nodes(nodes, GPU)
    assert found is not None
    assert [(gpu.name, count) for gpu, count in found] == [("H200", 2), ("L4", 1)]


def test_a_node_that_gives_none_away_does_not_count() -> None:
    assert gpu_nodes([node("NVIDIA-H200", has="0"), {"metadata": {}}], GPU) is None


def test_parts_of_a_gpu_have_labels_of_their_own() -> None:
    part = "nvidia.com/mig-3g.40gb"
    found = gpu_nodes([node("NVIDIA-H100-80GB-HBM3-MIG-3g.40gb", "40448", resource=part)], part)
    assert found is not None
    assert found[0].gpu.memory_bytes == 40_448 << 20


def test_labels_that_are_no_numbers_are_not_read() -> None:
    assert gpu_nodes([node(memory="much")], GPU) is None
