"""Which modules a newer Kubernetes is compiled from."""

from e2e.cluster import binaries, newer


def test_every_module_of_kubernetes_is_of_the_newer_version() -> None:
    usual = (binaries.SOURCES / "go.mod").read_text()
    text = newer.newer_modules(usual)
    assert f"k8s.io/kubernetes {newer.KUBERNETES_VERSION}\n" in text
    staged = newer.KUBERNETES_VERSION.replace("v1", "v0")
    assert text.count(staged) == usual.count(binaries.KUBERNETES_VERSION.replace("v1", "v0")) > 1
    assert binaries.KUBERNETES_VERSION[2:] not in text
