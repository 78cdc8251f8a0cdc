"""Where an engine finds the adapters of its model, how it is told of them, and who brings them there."""

from typing import Any

import pytest

from pagefleet_api.launch import Adapter, Launch
from pagefleet_api.runtimes import Runtime
from pagefleet_operator import render
from pagefleet_operator.facts.expansion import plain
from pagefleet_operator.facts.mounts import claims_of
from pagefleet_operator.render.pod import warnings
from tests.pagefleet_api.test_adapters import TAKES, service
from tests.pagefleet_operator.render.test_runtimes import flag

SQL = {"name": "sql", "uri": "hf://org/sql-lora", "revision": "v1"}
OWN = {"name": "own", "uri": "pvc://trained/own/"}
IMAGE = {"name": "baked", "uri": "file:///opt/baked"}
BASE: dict[str, Any] = {"uri": "hf://org/base", "revision": "v1"}
_CHOICES = render.Choices(replicas=1, wanted=1, image="engine:1", fetch_image="fetch:1", max_surge=1, max_unavailable=0)


def pod(*adapters: dict[str, Any], runtime: Runtime = Runtime.VLLM, **model: Any) -> dict[str, Any]:
    deployment = render.manifests(service(*adapters, runtime=runtime, **model), _CHOICES)[-1]
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return found


def told(made: dict[str, Any]) -> dict[str, str]:
    """Adapters' paths by their names, as vLLM is told."""
    args = made["containers"][0]["args"]
    return dict(word.split("=") for word in args[args.index("--lora-modules") + 1 :])


def _plain(args: list[str]) -> list[str]:
    """As a container gets them."""
    return [plain(word) for word in args]


def mounts(container: dict[str, Any]) -> dict[str, str]:
    return {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"] if mount["name"] != "tmp"}


def sources(made: dict[str, Any]) -> dict[str, Any]:
    names = {"tmp", "shm"}
    return {volume["name"]: next(part for key, part in volume.items() if key != "name")
            for volume in made["volumes"] if volume["name"] not in names}  # fmt: skip


def inside(path: str, made: dict[str, Any]) -> str:
    """The volume that the engine finds a path in."""
    return max((found for found in mounts(made["containers"][0]).items() if path.startswith(found[0])), key=len)[1]


def test_a_pod_downloads_its_adapters_one_after_the_other_beside_the_model() -> None:
    made = pod(SQL, {**SQL, "name": "two", "uri": "s3://b/two", "revision": None}, **BASE)
    first, second, third = made["initContainers"]
    assert [first["name"], second["name"], third["name"]] == ["fetch-model", "fetch-adapter-0", "fetch-adapter-1"]
    paths = told(made)
    for container, name in ((second, "sql"), (third, "two")):
        assert flag(container["args"], "--into") == paths[name]
        assert inside(paths[name], made) == mounts(container)["/adapters/cached"] == "models"
    assert flag(second["args"], "--revision") == "v1"
    assert sources(made) == {"models": {}}


def test_an_adapter_of_a_model_that_is_there_is_downloaded_with_its_credentials_alone() -> None:
    made = pod(SQL, secretRef={"name": "t"})
    (container,) = made["initContainers"]
    assert container["envFrom"] == [{"secretRef": {"name": "t"}}]
    assert sources(made) == {"adapters-0": {}}
    assert "envFrom" not in made["containers"][0]


def test_a_claim_is_mounted_once_and_read_only_whatever_is_on_it() -> None:
    cache = {"mode": "PVC", "pvc": "models"}
    made = pod(SQL, {"name": "left", "uri": "pvc://models/left"}, OWN, IMAGE, **BASE, cache=cache)
    assert "initContainers" not in made
    paths = told(made)
    assert paths["baked"] == "/opt/baked"
    volumes = sources(made)
    assert {name: volumes[inside(paths[name], made)]["claimName"] for name in ("sql", "left", "own")} == {
        "sql": "models", "left": "models", "own": "trained",
    }  # fmt: skip
    assert len(volumes) == 2
    assert all(mount.get("readOnly") for mount in made["containers"][0]["volumeMounts"][2:])


@pytest.mark.parametrize("base", [BASE, {"uri": "pvc://models/base"}])
def test_a_claim_that_the_pod_writes_to_is_one_volume_with_what_is_read_of_it(base: dict[str, Any]) -> None:
    cache = {"mode": "PVC", "pvc": "models", "prefetch": False}
    left = {"name": "left", "uri": "pvc://models/left"}
    for adapters in ((SQL, left), (left, SQL)):
        made = pod(*adapters, **base, cache=cache)
        assert sources(made) == {"models": {"claimName": "models"}}, "never twice, or no pod starts"
        assert all(mount["readOnly"] for mount in made["containers"][0]["volumeMounts"] if mount["name"] == "models")
        assert {mounts(container)["/adapters/cached"] for container in made["initContainers"][-1:]} == {"models"}


def test_adapters_on_nodes_are_volumes_of_their_own() -> None:
    made = pod(SQL, **BASE, cache={"mode": "Node"})
    paths = told(made)
    assert sources(made)[inside(paths["sql"], made)]["claimName"].startswith("model-sql-lora-")


def test_the_first_pod_downloads_onto_the_claim_where_nobody_does_before() -> None:
    made = pod(SQL, **BASE, cache={"mode": "PVC", "pvc": "models", "prefetch": False})
    assert [container["name"] for container in made["initContainers"]] == ["fetch-model", "fetch-adapter-0"]
    assert sources(made) == {"models": {"claimName": "models"}}


@pytest.mark.parametrize(
    "cache", [{"mode": "PVC", "pvc": "models"}, {"mode": "PVC", "pvc": "models", "prefetch": False}]
)
def test_what_pods_read_of_a_claim_is_seen_in_them(cache: dict[str, Any]) -> None:
    for runtime in TAKES:
        asked = service(SQL, {"name": "left", "uri": "pvc://models/left/a"}, runtime=runtime, **BASE, cache=cache)
        template = render.manifests(asked, _CHOICES)[-1]["spec"]["template"]
        wanted = render.folders_on(asked.spec.model, "models")
        assert len(wanted) == 3
        assert wanted <= claims_of(template["spec"])["models"], runtime


@pytest.mark.parametrize(
    ("ranks", "limit"), [((), "16"), ((4,), "16"), ((17, None), "32"), ((256,), "256"), ((512,), "512")]
)
def test_vllm_gets_room_for_the_highest_rank(ranks: tuple[int | None, ...], limit: str) -> None:
    adapters = [{**IMAGE, "name": f"a{place}", "rank": rank} for place, rank in enumerate(ranks or (None,))]
    args = pod(*adapters)["containers"][0]["args"]
    assert flag(args, "--max-lora-rank") == limit
    assert flag(args, "--max-loras") == str(len(adapters))
    assert "--enable-lora" in args


def test_every_engine_is_told_names_and_paths_in_its_own_way() -> None:
    two = (IMAGE, {"name": "b", "uri": "file:///opt/b$"})  # which Kubernetes would take for a variable's beginning
    sglang = pod(*two, runtime=Runtime.SGLANG)["containers"][0]["args"]
    assert sglang[-3:] == ["--lora-paths", "baked=/opt/baked", "b=/opt/b$$"]
    assert flag(sglang, "--max-loras-per-batch") == "3", "requests for the model alone are one more"
    ours = Launch.parse(_plain(pod(*two, runtime=Runtime.PAGEFLEET)["containers"][0]["args"]))
    assert ours.adapters == (Adapter("baked", "/opt/baked"), Adapter("b", "/opt/b$"))
    for runtime, variable in ((Runtime.TGI, "LORA_ADAPTERS"), (Runtime.CUSTOM, "PAGEFLEET_ADAPTERS")):
        env = {each["name"]: each["value"] for each in pod(*two, runtime=runtime)["containers"][0]["env"]}
        assert env[variable] == "baked=/opt/baked,b=/opt/b$$"


@pytest.mark.parametrize("runtime", TAKES)
def test_without_adapters_an_engine_is_told_of_none(runtime: Runtime) -> None:
    container = pod(runtime=runtime)["containers"][0]
    assert "lora" not in str(container).lower() and "adapter" not in str(container).lower()


def test_an_adapter_without_a_commit_is_warned_of_by_name() -> None:
    given = warnings(service({**SQL, "revision": None}, SQL | {"name": "b"}, **BASE))
    assert [text.partition(" is absent")[0] for text in given] == ["spec.model.adapters[sql].revision"]
    many = [{"name": f"a{number}", "uri": f"hf://org/a{number}"} for number in range(5)]
    (told,) = warnings(service(*many, **{**BASE, "revision": None}))
    begins = "spec.model.revision, spec.model.adapters[a0].revision, spec.model.adapters[a1].revision and 3 more are"
    assert told.startswith(f"{begins} absent")
