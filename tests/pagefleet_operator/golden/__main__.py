"""`python -m tests.pagefleet_operator.golden`: writes what every example renders to, for a person to review."""

import shutil
from pathlib import Path

import yaml

from pagefleet_api.model_source import CacheMode
from pagefleet_api.service import InferenceService
from pagefleet_operator import render
from pagefleet_operator.ownership import Owner

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
GOLDEN = Path(__file__).parent
IMAGE = "registry.example/pagefleet-engine:1.0"
FETCH_IMAGE = "registry.example/pagefleet-control:1.0"


def rendered(example: Path) -> dict[str, str]:
    """File name → YAML of each child of an example, as it is on its first apply."""
    body = yaml.safe_load(example.read_text(encoding="utf-8"))
    body["metadata"] |= {"namespace": "default", "uid": "00000000-0000-4000-8000-000000000000", "generation": 1}
    service = InferenceService.parse(body)
    scaling = service.spec.autoscaling
    wanted = service.spec.replicas if scaling is None else scaling.min_replicas
    choices = render.Choices(
        replicas=wanted,
        wanted=wanted,
        image=render.pinned_image(service, None, IMAGE),
        fetch_image=render.pinned_fetch_image(service, None, FETCH_IMAGE),
        max_surge=1,
        max_unavailable=0,
        owner=Owner("pagefleet-system", "pagefleet-operator"),
    )
    written: dict[str, str] = {}
    for manifest in (
        *(each for part in service.parts for each in _of_its_model(part)),
        *render.manifests(service, choices),
    ):
        kind = manifest["kind"].lower()
        name = f"{kind}.yaml" if f"{kind}.yaml" not in written else f"{kind}-{manifest['metadata']['name']}.yaml"
        written[name] = yaml.safe_dump(manifest, sort_keys=False, width=100)
    return written


def _of_its_model(service: InferenceService) -> list[render.Manifest]:
    """What brings the model, or an adapter, there, where pods do not."""
    match None if service.spec.model.fetched_by_pods else service.spec.model.cache.mode:
        case CacheMode.PVC:
            return [render.fetch_job(service, [service], FETCH_IMAGE, ())]
        case CacheMode.NODE:
            store = render.NodeStore("pagefleet-system", FETCH_IMAGE, "/var/lib/pagefleet/models")
            model = render.node_model([service], store)
            there = (model.daemon_set, model.volumes[service.namespace], model.claims[service.namespace])
            return [dict(manifest) for manifest in there]
        case _:
            return []


def main() -> None:
    """Write every golden file anew."""
    for example in sorted(EXAMPLES.glob("*.yaml")):
        folder = GOLDEN / example.stem
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, text in rendered(example).items():
            (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
