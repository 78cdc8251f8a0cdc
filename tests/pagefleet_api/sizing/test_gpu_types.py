import pytest

from pagefleet_api.sizing import gpu_types


def test_the_data_file_has_the_usual_types_with_what_nvidia_smi_shows() -> None:
    h200 = gpu_types.named("h200", gpu_types.known())
    assert h200.memory_bytes == 143_771 << 20
    assert h200.usable_bytes == 143_155 << 20, "what cudaMemGetInfo told on one"
    assert h200.compute_capability == (9, 0)
    names = {gpu.name for gpu in gpu_types.known()}
    assert {"H200", "H100", "A100-80GB", "A100-40GB", "L40S", "L4", "A10G", "T4", "MI300X", "B200"} <= names
    for gpu in gpu_types.known():
        assert 0.96 < gpu.usable_bytes / gpu.memory_bytes < 1, gpu.name


def test_an_unknown_type_is_told_with_those_there_are() -> None:
    with pytest.raises(gpu_types.GpuUnknown, match=r"'H900' is not known; there are B200, MI300X, H200"):
        gpu_types.named("H900", gpu_types.known())


@pytest.mark.parametrize(
    ("product", "memory_mib", "name"),
    [
        ("NVIDIA-H100-80GB-HBM3", 81_559, "H100"),
        ("NVIDIA-H100-NVL", 95_830, "H100-NVL"),
        ("NVIDIA-L40S", 46_068, "L40S"),
        ("NVIDIA-L4", None, "L4"),
        ("Tesla-T4", 15_360, "T4"),
    ],
)
def test_a_node_s_labels_name_its_type(product: str, memory_mib: int | None, name: str) -> None:
    found = gpu_types.of_node(product, memory_mib, gpu_types.known())
    assert found is not None
    assert found.name == name


def test_a_node_whose_product_is_in_no_list_counts_by_its_memory() -> None:
    found = gpu_types.of_node("NVIDIA-X1", 50_000, gpu_types.known())
    assert found is not None
    assert (found.name, found.memory_bytes, found.compute_capability) == ("NVIDIA-X1", 50_000 << 20, None)
    unnamed = gpu_types.of_node(None, 50_000, gpu_types.known())
    assert unnamed is not None
    assert unnamed.name == "GPU with 50000 MiB"


def test_a_part_of_a_gpu_counts_as_that_part() -> None:
    part = gpu_types.of_node("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", 9_728, gpu_types.known())
    assert part is not None
    assert part.memory_bytes == 9_728 << 20
    assert part.compute_capability == (9, 0)


@pytest.mark.parametrize("product", [None, "NVIDIA-X1"])
def test_without_labels_nothing_is_known(product: str | None) -> None:
    assert gpu_types.of_node(product, None, gpu_types.known()) is None
