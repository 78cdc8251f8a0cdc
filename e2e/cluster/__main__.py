"""`python -m e2e.cluster`: a real cluster on this machine."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster import images, prepare
from e2e.cluster.box import Box
from e2e.cluster.errors import BoxError
from e2e.cluster.layout import API_SERVER_ONLY, CLUSTER, MAX_NODES
from e2e.cluster.progress import Progress

TOOLS = ("kubectl", "helm")


def state_folder() -> Path:
    """PAGEFLEET_STATE, or `.state` in the checkout."""
    given = os.environ.get("PAGEFLEET_STATE")
    return Path(given) if given else images.CHECKOUT / ".state"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    top.add_argument("--api-only", action="store_true", help="the box without nodes: etcd and API server on loopback")
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare", help="install packages, compile the binaries, build the images")
    up = commands.add_parser("up", help="start what does not run, wait until it is ready")
    up.add_argument("--nodes", type=int, default=2, choices=range(1, MAX_NODES + 1))
    commands.add_parser("down", help="stop the cluster and leave nothing behind")
    commands.add_parser("status", help="what runs; exit status 1 unless all of it does")
    commands.add_parser("kubeconfig", help="print the path of the administrator's kubeconfig")
    build = commands.add_parser("images", help="build the images from the checkout")
    build.add_argument("--only", choices=("control", "engine"))
    commands.add_parser("load", help="bring the built images into the running nodes")
    push = commands.add_parser("push", help="copy the images to a registry")
    push.add_argument("registry")
    for tool in TOOLS:
        commands.add_parser(tool, help=f"{tool} on the cluster", add_help=False, prefix_chars="\0")
    return top


def main(argv: Sequence[str]) -> int:
    options, rest = parser().parse_known_args(argv)
    if rest and options.command not in TOOLS:
        parser().error(f"unrecognized arguments: {' '.join(rest)}")
    state = state_folder()
    box = Box.at(state, API_SERVER_ONLY if options.api_only else CLUSTER)
    match options.command:
        case "prepare":
            prepare.prepare(state)
        case "up":
            up(box, 0 if options.api_only else options.nodes)
        case "down":
            box.down()
        case "status":
            return status(box)
        case "kubeconfig":
            print(box.kubeconfig)
        case "images":
            build(state, (options.only,) if options.only else ("pause", "control", "engine"))
        case "load":
            box.load_images()
        case "push":
            print("\n".join(prepare.push(state, options.registry)))
        case tool:
            run_tool(box, tool, rest)
    return 0


def up(box: Box, nodes: int) -> None:
    started_s = time.monotonic()
    box.up(nodes)
    seconds = time.monotonic() - started_s
    print(f"ready in {seconds:.1f} s: export KUBECONFIG={box.kubeconfig}")
    print("then `kubectl get nodes`, or `.venv/bin/python -m e2e.cluster kubectl get nodes`")
    if nodes and not images.complete(images.built(box.folders.root.parent)):
        print("some images are not built: `.venv/bin/python -m e2e.cluster images`, then `load`")


def build(state: Path, chosen: Sequence[str]) -> None:
    with Progress() as progress:
        made = images.build(state, chosen, progress.teller("images"))
    print(f"in {images.layout_folder(state)}: {', '.join(sorted(image.name for image in made))}")
    print("to a registry: `.venv/bin/python -m e2e.cluster push REGISTRY`")


def status(box: Box) -> int:
    for name in box.processes.names():
        record = box.processes.running(name)
        print(f"{name:26} {f'pid {record.pid}' if record else 'not running'}")
    print(f"{box.layout.api_url}: {'alive' if box.alive() else 'not alive'}")
    return 0 if box.alive() else 1


def run_tool(box: Box, tool: str, rest: Sequence[str]) -> None:
    """Becomes the tool, so that its input, output and exit status are its own."""
    path = str(box.bin(tool))
    os.execve(path, [tool, *rest], {**os.environ, "KUBECONFIG": str(box.kubeconfig)})


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BoxError as error:
        sys.exit(f"error: {error}")
