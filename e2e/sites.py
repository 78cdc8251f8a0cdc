"""Where the demo and the stories run: a cluster in a box on this machine, or a cluster that the user has."""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from e2e.cluster import images
from e2e.cluster.box import Box
from e2e.endpoint import ClusterAddress, Endpoint, PodForwards
from e2e.kubectl import Kubectl
from e2e.progress import Progress, run_tool
from e2e.service import Service

CHECKOUT = Path(__file__).parents[1]
_REGISTRY = re.compile(r"[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")


def state_folder() -> Path:
    """Where everything of this checkout's cluster, demo and logs lies; absolute, and ignored by git."""
    return Path(os.environ.get("PAGEFLEET_STATE") or CHECKOUT / ".state").absolute()


class ImageNames(NamedTuple):
    """The two images as the cluster's nodes know them."""

    control: str
    engine: str
    control_digest: str
    engine_digest: str
    """Digests change with the image, as the name of a development image does not."""


class Site(Protocol):
    """A cluster and the way to it."""

    @property
    def local(self) -> bool:
        """Whether this machine reaches pods, and the cluster is ours to stop."""

    def bring_up(self, progress: Progress) -> ImageNames:
        """Cluster and images, from whatever is there; ToolFailed says what is missing."""

    @property
    def kubectl(self) -> Kubectl:
        """kubectl for it; BoxError or ToolFailed while there is none."""

    @property
    def helm(self) -> str: ...

    def endpoint(self, service: Service) -> Endpoint: ...


def _cluster_tool(*words: str) -> list[str]:
    return [sys.executable, "-m", "e2e.cluster", *words]


def built_images() -> ImageNames:
    """The images of this checkout as they were built last, by the names that the box's nodes know."""
    return _named(images.CONTROL_IMAGE, images.ENGINE_IMAGE)


def _named(control: str, engine: str) -> ImageNames:
    digests = {image.name: image.manifest_digest for image in images.built(state_folder())}
    return ImageNames(control, engine, digests[images.CONTROL_IMAGE], digests[images.ENGINE_IMAGE])


@dataclass(frozen=True, slots=True)
class BoxSite:
    """The cluster of `e2e.cluster` on this machine."""

    box: Box
    local: bool = True

    @classmethod
    def here(cls) -> "BoxSite":
        return cls(Box.at(state_folder()))

    def bring_up_apart(self, progress: Progress) -> ImageNames:
        """A box beside the one of `here`, with images of its own in its state; binaries must be there."""
        state = self.box.folders.root.parent
        with progress.step("images") as say:
            built = {image.name: image.manifest_digest for image in images.build(state, tuple(images.PLANS), say)}
        with progress.step("cluster of its own"):
            self.box.up(2)
            self.box.load_images()
        control, engine = images.CONTROL_IMAGE, images.ENGINE_IMAGE
        return ImageNames(control, engine, built[control], built[engine])

    def bring_up(self, progress: Progress) -> ImageNames:
        with progress.step("Kubernetes binaries and images (compiled and built once)") as say:
            run_tool(_cluster_tool("prepare"), say)
        with progress.step("cluster with two nodes") as say:
            run_tool(_cluster_tool("up"), say)
        with progress.step("images into the nodes") as say:
            run_tool(_cluster_tool("load"), say)
        return built_images()

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(str(self.box.bin("kubectl")), str(self.box.kubeconfig))

    @property
    def helm(self) -> str:
        return str(self.box.bin("helm"))

    def endpoint(self, service: Service) -> Endpoint:
        return ClusterAddress(service)


@dataclass(frozen=True, slots=True)
class OwnSite:
    """A cluster that `kubeconfig` points at and that pulls images from `registry`."""

    kubeconfig: str
    registry: str
    local: bool = False

    def bring_up(self, progress: Progress) -> ImageNames:
        asked_before = Path(_tool("kubectl")).exists()  # else it is compiled with the images
        if asked_before:
            self._ask(progress)
        with progress.step("images") as say:
            run_tool(_cluster_tool("images"), say)
        if not asked_before:
            self._ask(progress)
        with progress.step(f"images to {self.registry}") as say:
            run_tool(_cluster_tool("push", self.registry), say)
        pushed = built_images()
        # by digest: nodes that have an older image of the same tag would not pull again
        return pushed._replace(
            control=self._pulled(pushed.control, pushed.control_digest),
            engine=self._pulled(pushed.engine, pushed.engine_digest),
        )

    def _ask(self, progress: Progress) -> None:
        """Before minutes are spent on images that no cluster would take."""
        with progress.step("cluster answers"):
            self.kubectl.run("version", "--request-timeout=15s")

    def _pulled(self, name: str, digest: str) -> str:
        repository, _, _ = name.removeprefix("localhost/").rpartition(":")
        return f"{self.registry}/{repository}@sha256:{digest}"

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(_tool("kubectl"), self.kubeconfig)

    @property
    def helm(self) -> str:
        return _tool("helm")

    def endpoint(self, service: Service) -> Endpoint:
        return PodForwards(service)


def _tool(name: str) -> str:
    """The user's own tool, else the one that was compiled for the box."""
    return shutil.which(name) or str(Box.at(state_folder()).bin(name))


def site(environment: Mapping[str, str]) -> Site:
    """The user's own cluster when KUBECONFIG and REGISTRY are both given, else the box.

    Raises:
        ValueError: REGISTRY is given alone, or one of the two is not usable.
    """
    kubeconfig, registry = environment.get("KUBECONFIG"), environment.get("REGISTRY")
    if registry and not kubeconfig:
        raise ValueError("REGISTRY is given without KUBECONFIG: give both to use a cluster of your own, or neither")
    if kubeconfig and registry:
        if not any(Path(file).expanduser().exists() for file in kubeconfig.split(os.pathsep) if file):
            raise ValueError(f"KUBECONFIG is {kubeconfig!r}: there is no such file; give that of your cluster")
        if not _REGISTRY.fullmatch(registry.rstrip("/")):
            raise ValueError(
                f"REGISTRY is {registry!r}: write it as in an image's name, HOST[:PORT]/PATH in small letters"
            )
        return OwnSite(kubeconfig, registry.rstrip("/"))
    return BoxSite.here()
