"""The images of a box: pause, control and engine, built from cached layers."""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from e2e.cluster import layers, oci, seed
from e2e.cluster.binaries import cache_folder, cached_binaries
from e2e.cluster.configuration import PAUSE_IMAGE
from e2e.cluster.locks import locked

CONTROL_IMAGE = "localhost/pagefleet-control:dev"
ENGINE_IMAGE = "localhost/pagefleet-engine:dev"
TINI = ("/usr/bin/tini", "--", "/usr/bin/python3", "-m")
USER = "65532:65532"
BLOB_LIFE_S = 30 * 24 * 3600
PYTHON_ENV = {
    "PATH": "/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONPATH": "/app/code:/app/site:/app/model",
}
CHECKOUT = layers.CHECKOUT
CONTROL_PACKAGES = ("pagefleet_operator", "pagefleet_fetch", "pagefleet_cli")


class ImagePlan(NamedTuple):
    name: str
    recipes: Callable[[], Sequence[layers.Recipe]]
    program: oci.Program


def _control_recipes() -> Sequence[layers.Recipe]:
    own = [CHECKOUT / "crds/pagefleet_api", *(CHECKOUT / "operator" / name for name in CONTROL_PACKAGES)]
    return layers.base(), layers.control_site(), layers.code("control", own)


def _engine_recipes() -> Sequence[layers.Recipe]:
    own = [CHECKOUT / "crds/pagefleet_api", CHECKOUT / "engine_image/pagefleet_engine"]
    return layers.base(), layers.engine_site(), layers.model(), layers.code("engine", own)


PLANS = {
    "pause": ImagePlan(
        PAUSE_IMAGE, lambda: [layers.pause(cached_binaries())], oci.Program(("/pause",), "65535:65535", {})
    ),
    "control": ImagePlan(
        CONTROL_IMAGE,
        _control_recipes,
        # kopf asks for its user's name
        oci.Program((*TINI, "pagefleet_operator"), USER, {**PYTHON_ENV, "USER": "operator"}),
    ),
    "engine": ImagePlan(
        ENGINE_IMAGE,
        _engine_recipes,
        # large blocks go back to the system: 250 MB less after the weights are loaded
        oci.Program(
            (*TINI, "pagefleet_engine"),
            USER,
            {**PYTHON_ENV, "MALLOC_MMAP_THRESHOLD_": "1048576", "OMP_NUM_THREADS": "1"},
        ),
    ),
}


def blobs_folder() -> Path:
    return cache_folder() / "images" / "blobs" / "sha256"


def layout_folder(state: Path) -> Path:
    """The OCI layout of one checkout: an index over the blobs that all checkouts share."""
    return state / "images"


def built(state: Path) -> list[oci.Image]:
    return oci.read_index(layout_folder(state), blobs_folder())


def complete(images: Iterable[oci.Image]) -> bool:
    """Whether every image of a box is among these; there may be others. Pure."""
    return {plan.name for plan in PLANS.values()} <= {image.name for image in images}


def build(state: Path, which: Sequence[str], tell: Callable[[str], None]) -> list[oci.Image]:
    """Build the images named (keys of PLANS) and put them into the checkout's layout beside the others there."""
    images = {image.name: image for image in built(state)}
    for key in which:
        plan = PLANS[key]
        stack = [layer_of(recipe, tell) for recipe in plan.recipes()]
        images[plan.name] = oci.write_image(blobs_folder(), plan.name, stack, plan.program)
    _forget_unused({digest for image in images.values() for digest in image.blobs})
    layout = layout_folder(state)
    layout.mkdir(parents=True, exist_ok=True)
    (layout / "oci-layout").write_bytes(oci.LAYOUT)
    (layout / "index.json").write_bytes(oci.index(images.values()))
    if complete(images.values()):
        seed.make(list(images.values()), blobs_folder(), tell)
    return list(images.values())


def _forget_unused(used: Collection[str]) -> None:
    """Blobs that no checkout built with for a month go."""
    for digest in used:
        os.utime(blobs_folder() / digest)
    for blob in blobs_folder().iterdir():
        if time.time() - blob.stat().st_mtime > BLOB_LIFE_S:
            blob.unlink()


def layer_of(recipe: layers.Recipe, tell: Callable[[str], None]) -> oci.Layer:
    """The recipe's layer, from the cache when its key was built before."""
    note = cache_folder() / "images" / "layers" / f"{recipe.name}-{recipe.key}.json"
    if known := _known_layer(note):
        return known
    with locked(note.parent):
        if known := _known_layer(note):  # somebody made it while we waited
            return known
        for left in note.parent.glob("partial.*"):  # by a build that was killed
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(dir=note.parent, prefix="partial.") as work:
            tree = Path(work, recipe.name)
            tree.mkdir()
            tell(f"making {recipe.name}")
            recipe.make(tree)
            tell(f"packing {recipe.name}")
            layer = oci.write_layer(blobs_folder(), tree, recipe.target)
        note.write_text(json.dumps(layer._asdict()))
    return layer


def _known_layer(note: Path) -> oci.Layer | None:
    try:
        layer = oci.Layer(**json.loads(note.read_text()))
    except (FileNotFoundError, ValueError):
        return None
    return layer if (blobs_folder() / layer.digest).exists() else None
