"""Images written as an OCI layout, read back."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from e2e.cluster import oci

PROGRAM = oci.Program(("/bin/app", "--flag"), "65532:65532", {"PATH": "/bin", "A": "b=c"})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "app").write_text("#!")
    (root / "bin" / "app").chmod(0o700)
    (root / "bin" / "link").symlink_to("app")
    (root / "data").write_bytes(b"x" * 100_000)
    (root / "data").chmod(0o600)
    return root


def members(blob: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(blob))) as tar:
        return {member.name: member for member in tar.getmembers()}


def test_a_layer_is_named_by_what_is_in_it(tmp_path: Path, tree: Path) -> None:
    layer = oci.write_layer(tmp_path / "blobs", tree, "app")
    blob = (tmp_path / "blobs" / layer.digest).read_bytes()
    assert hashlib.sha256(blob).hexdigest() == layer.digest
    assert hashlib.sha256(gzip.decompress(blob)).hexdigest() == layer.plain_digest
    assert len(blob) == layer.size_bytes
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == [layer.digest]


def test_a_layer_keeps_names_links_and_execution_but_neither_owner_nor_time(tmp_path: Path, tree: Path) -> None:
    layer = oci.write_layer(tmp_path / "blobs", tree, "app")
    found = members((tmp_path / "blobs" / layer.digest).read_bytes())
    assert set(found) == {"app/bin", "app/bin/app", "app/bin/link", "app/data"}
    assert found["app/bin/link"].linkname == "app"
    assert (found["app/bin/app"].mode, found["app/data"].mode) == (0o755, 0o644)
    assert {(member.uid, member.gid, member.mtime) for member in found.values()} == {(0, 0, 0)}


def test_the_same_tree_gives_the_same_layer_whoever_wrote_it_when(tmp_path: Path, tree: Path) -> None:
    first = oci.write_layer(tmp_path / "blobs", tree, "")
    (tree / "data").touch()
    assert oci.write_layer(tmp_path / "blobs", tree, "") == first


def test_an_image_is_read_back_from_its_layout(tmp_path: Path, tree: Path) -> None:
    blobs, layout = tmp_path / "blobs", tmp_path / "layout"
    layer = oci.write_layer(blobs, tree, "")
    image = oci.write_image(blobs, "localhost/app:dev", [layer], PROGRAM)
    layout.mkdir()
    (layout / "index.json").write_bytes(oci.index([image]))
    assert oci.read_index(layout, blobs) == [image]
    manifest, config = (json.loads((blobs / digest).read_bytes()) for digest in image.blobs[:2])
    assert manifest["layers"][0]["digest"] == f"sha256:{layer.digest}"
    assert config["config"] == {
        "User": "65532:65532",
        "Env": ["PATH=/bin", "A=b=c"],
        "Entrypoint": ["/bin/app", "--flag"],
    }
    assert config["rootfs"]["diff_ids"] == [f"sha256:{layer.plain_digest}"]
    assert image.blobs[oci.FIRST_LAYER :] == (layer.digest,)


@pytest.mark.parametrize("which", [0, 1, oci.FIRST_LAYER])
def test_an_image_whose_blobs_are_gone_is_not_there(tmp_path: Path, tree: Path, which: int) -> None:
    blobs, layout = tmp_path / "blobs", tmp_path / "layout"
    whole = oci.write_image(blobs, "localhost/whole:dev", [oci.write_layer(blobs, tree, "")], PROGRAM)
    (tree / "more").touch()
    image = oci.write_image(blobs, "localhost/app:dev", [oci.write_layer(blobs, tree, "app")], PROGRAM)
    layout.mkdir()
    (layout / "index.json").write_bytes(oci.index([whole, image]))
    (blobs / image.blobs[which]).unlink()
    assert oci.read_index(layout, blobs) == [whole]


def test_without_a_layout_there_are_no_images(tmp_path: Path) -> None:
    assert oci.read_index(tmp_path, tmp_path) == []


def test_an_archive_holds_each_blob_once_and_leaves_out_what_is_there(tmp_path: Path, tree: Path) -> None:
    blobs = tmp_path / "blobs"
    shared = oci.write_layer(blobs, tree, "")
    own = oci.write_layer(blobs, tree, "app")
    images = [oci.write_image(blobs, f"localhost/{n}:dev", [shared, own], PROGRAM) for n in ("a", "b")]
    archive = io.BytesIO()
    oci.write_archive(archive, images, blobs, present=[shared.digest])
    with tarfile.open(fileobj=io.BytesIO(archive.getvalue())) as tar:
        names = tar.getnames()
        index = json.load(tar.extractfile("index.json") or io.BytesIO())
    digests = {digest for image in images for digest in image.blobs} - {shared.digest}
    assert sorted(names) == sorted(["oci-layout", "index.json", *(f"blobs/sha256/{digest}" for digest in digests)])
    assert [entry["annotations"]["io.containerd.image.name"] for entry in index["manifests"]] == [
        "localhost/a:dev",
        "localhost/b:dev",
    ]
