"""What goes into the images, and what a node is sent of them."""

import pytest

from e2e.cluster import images, layers, node_images, oci, requirements_lock, runtime, seed
from e2e.cluster.binaries import build_flags, content_key
from e2e.cluster.configuration import PAUSE_IMAGE

LOCK = """\
# written by a tool
alpha==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:ab
    # via beta
nvidia-thing==2 ; sys_platform == 'linux' \\
    --hash=sha256:ba
beta==3 \\
    --hash=sha256:ca
"""
LISTING = """\
REF                     TYPE                                       DIGEST     SIZE    PLATFORMS   LABELS
localhost/control:dev   application/vnd.oci.image.manifest.v1+json sha256:new 1.0 MiB linux/amd64 -
sha256:config-new       application/vnd.oci.image.manifest.v1+json sha256:new 1.0 MiB linux/amd64 managed
sha256:config-old       application/vnd.oci.image.manifest.v1+json sha256:old 1.0 MiB linux/amd64 managed
"""


def image(name: str, manifest: str, *layers: str) -> oci.Image:
    return oci.Image(name, manifest, 1, (manifest, f"config-{manifest}", *layers))


def test_a_lock_is_cut_by_distribution_with_all_of_its_hashes() -> None:
    cut = requirements_lock.without(LOCK, ["nvidia-"])
    assert cut == ("alpha==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:ab\nbeta==3 \\\n    --hash=sha256:ca\n")


def test_a_lock_without_requirements_is_empty() -> None:
    assert requirements_lock.without("# nothing\n", []) == ""


def test_the_engine_keeps_torch_and_drops_what_only_a_gpu_needs() -> None:
    lock = (layers.CHECKOUT / "requirements/engine.txt").read_text()
    kept = {name for name, _ in requirements_lock.blocks(requirements_lock.without(lock, layers.GPU_DISTRIBUTIONS))}
    assert {"torch", "numpy", "tokenizers"} <= kept
    assert not any(name.startswith(("nvidia", "cuda", "triton")) for name in kept)


@pytest.mark.parametrize(
    ("sources", "mirror"),
    [
        ("deb http://mirror.test/debian bookworm main\n", "http://mirror.test/debian"),
        ("deb [signed-by=x] https://mirror.test/debian bookworm main\n", "https://mirror.test/debian"),
        ("Types: deb\nURIs: https://mirror.test/debian https://other.test\n", "https://mirror.test/debian"),
        ("# deb http://mirror.test/debian bookworm main\n", None),
        ("", None),
    ],
    ids=["one line", "with options", "deb822", "commented out", "nothing"],
)
def test_the_base_comes_from_the_hosts_own_mirror(sources: str, mirror: str | None) -> None:
    assert layers.mirror_in(sources) == mirror


def test_a_key_changes_with_every_name_content_and_fact() -> None:
    keys = [
        content_key({"a": b"1"}),
        content_key({"a": b"2"}),
        content_key({"b": b"1"}),
        content_key({"a": b"1"}, "fact"),
        content_key({"a": b"1", "c": b""}),
        content_key({}, "a", "b"),
        content_key({}, "ab"),
    ]
    assert len(set(keys)) == len(keys)
    assert content_key({"a": b"1", "b": b"2"}) == content_key({"b": b"2", "a": b"1"})


def test_the_binaries_say_which_kubernetes_they_are() -> None:
    assert "gitVersion=v1.34.4" in build_flags()[-1]
    assert "-trimpath" in build_flags()


def test_a_runtimes_listing_tells_which_names_no_image_bears_any_more() -> None:
    listing = runtime.parse_listing(LISTING)
    assert listing["localhost/control:dev"] == "new"
    assert runtime.stale_names(listing) == ["sha256:config-old"]


def test_only_images_that_a_node_lacks_or_has_in_another_version_are_sent() -> None:
    current, changed, unknown = image("a", "1"), image("b", "2"), image("c", "3")
    assert node_images.outdated([current, changed, unknown], {"a": "1", "b": "old"}) == [changed, unknown]


def test_images_are_complete_when_none_of_the_boxs_own_is_missing() -> None:
    own = [image(name, "m") for name in (PAUSE_IMAGE, images.CONTROL_IMAGE, images.ENGINE_IMAGE)]
    assert images.complete([*own, image("localhost/other:dev", "m")])
    assert not images.complete(own[:2])


def test_a_seed_outlives_a_change_of_code_but_not_one_of_what_is_below_it() -> None:
    before = [image("control", "m1", "base", "site", "code1"), image("pause", "m2", "pause")]
    recoded = [image("control", "m3", "base", "site", "code2"), image("pause", "m2", "pause")]
    relocked = [image("control", "m4", "base", "site2", "code1"), image("pause", "m2", "pause")]
    assert seed.key(before) == seed.key(recoded) != seed.key(relocked)
