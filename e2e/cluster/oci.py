"""Container images written straight as an OCI layout: no builder, no daemon, no registry.

Layers are kept by the digest of their content, so that a change of code writes and sends only the last, small one.
Format: the OCI image specification 1.0 (manifest, config, image layout).
"""

import hashlib
import io
import json
import platform
import tarfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

Json = dict[str, Any]
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
LAYOUT = b'{"imageLayoutVersion": "1.0.0"}'
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
CHUNK_BYTES = 1 << 20
FIRST_LAYER = 2  # in Image.blobs


class Layer(NamedTuple):
    """A layer's blob: the digests of its compressed and its plain bytes (hex, SHA-256), and its compressed size."""

    digest: str
    plain_digest: str
    size_bytes: int


class Program(NamedTuple):
    """How a container of the image starts."""

    entrypoint: tuple[str, ...]
    user: str
    env: Mapping[str, str]


class Image(NamedTuple):
    """A named image in a layout; `blobs` are the digests of its manifest, its config and its layers, in this order."""

    name: str
    manifest_digest: str
    manifest_size_bytes: int
    blobs: tuple[str, ...]


class _Sink:
    """Compresses and digests what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._deflate = file, zlib.compressobj(1, zlib.DEFLATED, 31)
        self._plain, self._packed, self._size_bytes = hashlib.sha256(), hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self._plain.update(data)
        self._emit(self._deflate.compress(data))
        return len(data)

    def _emit(self, data: bytes) -> None:
        self._packed.update(data)
        self._size_bytes += len(data)
        self._file.write(data)

    def finish(self) -> Layer:
        self._emit(self._deflate.flush())
        return Layer(self._packed.hexdigest(), self._plain.hexdigest(), self._size_bytes)


def _reproducible(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Equal trees give equal bytes: no owner, no time; and every user may read what its owner may."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode |= (entry.mode & 0o500) >> 3 | (entry.mode & 0o500) >> 6
    return entry


def write_layer(blobs: Path, tree: Path, target: str) -> Layer:
    """The content of the folder `tree` as one layer below `target` ("" is the root), stored in `blobs`."""
    blobs.mkdir(parents=True, exist_ok=True)
    partial = blobs / f"partial.{tree.name}"
    with partial.open("wb") as file:
        sink = _Sink(file)
        with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT, bufsize=CHUNK_BYTES) as tar:  # type: ignore[call-overload]
            for child in sorted(tree.iterdir()):
                tar.add(child, str(Path(target, child.name)), filter=_reproducible)
        layer = sink.finish()
    partial.rename(blobs / layer.digest)
    return layer


def _write_json(blobs: Path, document: Json) -> tuple[str, int]:
    content = json.dumps(document, sort_keys=True).encode()
    digest = hashlib.sha256(content).hexdigest()
    (blobs / digest).write_bytes(content)
    return digest, len(content)


def write_image(blobs: Path, name: str, layers: Iterable[Layer], program: Program) -> Image:
    """The image's config and manifest, stored in `blobs` beside its layers."""
    stack = list(layers)
    config: Json = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {
            "User": program.user,
            "Env": [f"{key}={value}" for key, value in program.env.items()],
            "Entrypoint": list(program.entrypoint),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.plain_digest}" for layer in stack]},
    }
    config_digest, config_size_bytes = _write_json(blobs, config)
    manifest: Json = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": _descriptor(CONFIG_TYPE, config_digest, config_size_bytes),
        "layers": [_descriptor(LAYER_TYPE, layer.digest, layer.size_bytes) for layer in stack],
    }
    digest, size_bytes = _write_json(blobs, manifest)
    return Image(name, digest, size_bytes, (digest, config_digest, *(layer.digest for layer in stack)))


def _descriptor(media_type: str, digest: str, size_bytes: int) -> Json:
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size_bytes}


def index(images: Iterable[Image]) -> bytes:
    """The layout's index; both annotations, as containerd reads one name and skopeo the other."""
    manifests = [
        _descriptor(MANIFEST_TYPE, image.manifest_digest, image.manifest_size_bytes)
        | {"annotations": dict.fromkeys(("org.opencontainers.image.ref.name", "io.containerd.image.name"), image.name)}
        for image in images
    ]
    return json.dumps({"schemaVersion": 2, "manifests": manifests}, sort_keys=True).encode()


def read_index(layout: Path, blobs: Path) -> list[Image]:
    """The images of a layout whose blobs are all there: somebody may have emptied the cache; none without a layout."""
    path = layout / "index.json"
    if not path.exists():
        return []
    found = (_read_image(entry, blobs) for entry in json.loads(path.read_bytes())["manifests"])
    return [image for image in found if image is not None]


def _read_image(entry: Json, blobs: Path) -> Image | None:
    digest = entry["digest"].removeprefix("sha256:")
    if not (blobs / digest).exists():
        return None
    manifest = json.loads((blobs / digest).read_bytes())
    parts = [part["digest"].removeprefix("sha256:") for part in (manifest["config"], *manifest["layers"])]
    if not all((blobs / part).exists() for part in parts):
        return None
    name = entry["annotations"]["org.opencontainers.image.ref.name"]
    return Image(name, digest, entry["size"], (digest, *parts))


def write_archive(out: IO[bytes], images: Iterable[Image], blobs: Path, present: Collection[str] = ()) -> None:
    """The images as one OCI archive, streamed; the blobs named in `present` are left out."""
    wanted = list(images)
    with tarfile.open(fileobj=out, mode="w|", bufsize=CHUNK_BYTES) as tar:
        for name, content in (("oci-layout", LAYOUT), ("index.json", index(wanted))):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for digest in _unique(wanted):
            if digest not in present:
                tar.add(blobs / digest, f"blobs/sha256/{digest}")


def _unique(images: Iterable[Image]) -> Iterator[str]:
    yield from dict.fromkeys(digest for image in images for digest in image.blobs)
