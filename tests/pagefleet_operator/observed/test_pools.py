"""Which label names a node's pool."""

import pytest

from pagefleet_operator.facts.pools import POOL_LABELS, pool_of


@pytest.mark.parametrize("label", POOL_LABELS)
def test_each_clouds_label_names_the_pool(label: str) -> None:
    assert pool_of({"kubernetes.io/hostname": "n", label: "gpus"}) == "gpus"


def test_a_pools_own_name_goes_before_the_kind_of_machine() -> None:
    labels = {name: name for name in reversed(POOL_LABELS)}
    assert pool_of(labels) == "karpenter.sh/nodepool"
    assert pool_of({**labels, "karpenter.sh/nodepool": ""}) == "cloud.google.com/gke-nodepool"


def test_a_node_without_any_of_them_is_of_no_pool() -> None:
    assert pool_of({"kubernetes.io/hostname": "n"}) is None
