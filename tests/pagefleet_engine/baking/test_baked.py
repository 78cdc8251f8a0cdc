"""Kernels in two folders: Triton's cache, which is written, and the image's, which is read."""

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

KEY = "SOMEKERNEL"
NAME = "kernel.json"


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The cache's folder of the key and the image's, which do not exist yet."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PAGEFLEET_KERNELS", str(tmp_path / "image"))
    return tmp_path / "cache" / KEY, tmp_path / "image" / KEY


def place(folder: Path, *, listed: tuple[str, ...] = ("kernel.json", "kernel.cubin")) -> None:
    """A kernel as one machine compiled it, somewhere else."""
    folder.mkdir(parents=True)
    for name in ("kernel.json", "kernel.cubin"):
        (folder / name).write_text(name)
    group = {"child_paths": {name: f"/elsewhere/{KEY}/{name}" for name in listed}}
    (folder / f"__grp__{NAME}").write_text(json.dumps(group))


def manager() -> Any:
    from pagefleet_engine.kernels.baked import BakedKernels

    return BakedKernels(KEY)


def test_a_kernel_of_the_image_is_found_wherever_it_was_compiled(folders: tuple[Path, Path]) -> None:
    _, image = folders
    place(image)
    group = manager().get_group(NAME)
    assert group == {name: str(image / name) for name in ("kernel.json", "kernel.cubin")}
    assert manager().get_file("kernel.cubin") == str(image / "kernel.cubin")


def test_what_this_machine_compiled_goes_first(folders: tuple[Path, Path]) -> None:
    cache, image = folders
    place(image)
    own = manager()
    paths = {name: own.put("own", name) for name in ("kernel.json", "kernel.cubin")}
    own.put_group(NAME, paths)
    assert manager().get_group(NAME) == paths
    assert manager().get_file("kernel.json") == str(cache / "kernel.json")


@pytest.mark.parametrize("listed", [("kernel.json", "kernel.ptx"), ()])
def test_a_kernel_that_is_not_whole_is_compiled(folders: tuple[Path, Path], listed: tuple[str, ...]) -> None:
    _, image = folders
    place(image, listed=listed)
    assert not manager().get_group(NAME)


@pytest.mark.parametrize(
    "text", ["", "{}", "no json", "[]", "null", '{"child_paths": null}', '{"child_paths": [1]}', '{"child_paths": 5}']
)
def test_a_list_that_cannot_be_read_is_none(folders: tuple[Path, Path], text: str) -> None:
    _, image = folders
    place(image)
    (image / f"__grp__{NAME}").write_text(text)
    assert manager().get_group(NAME) is None


def test_a_folder_that_cannot_be_looked_into_holds_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PAGEFLEET_KERNELS", str(tmp_path / ("x" * 300)))
    assert manager().get_group(NAME) is None
    assert manager().get_file("kernel.cubin") is None


def test_without_a_folder_there_is_only_the_cache(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    place(folders[1])
    monkeypatch.setenv("PAGEFLEET_KERNELS", "")
    assert manager().get_group(NAME) is None
    assert manager().get_file("kernel.cubin") is None


def test_what_triton_s_user_overrides_or_dumps_is_of_one_folder(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pagefleet_engine.kernels.baked import BakedKernels

    place(folders[1])
    for name in ("TRITON_OVERRIDE_DIR", "TRITON_DUMP_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for kind in ("override", "dump"):
        assert BakedKernels(KEY, **{kind: True}).get_file("kernel.cubin") is None


def test_of_each_kernel_what_is_loaded_is_kept(folders: tuple[Path, Path]) -> None:
    from pagefleet_engine.baking import tasks

    _, image = folders
    place(image, listed=("kernel.json", "kernel.cubin", "kernel.ptx"))
    (image / "kernel.ptx").write_text("ptx")
    assert tasks.trim(image.parent)[0] == 1
    assert {path.name for path in image.iterdir()} == {"kernel.json", "kernel.cubin", f"__grp__{NAME}"}
    assert manager().get_group(NAME) == {name: str(image / name) for name in ("kernel.json", "kernel.cubin")}


def test_who_listened_to_triton_before_listens_again() -> None:
    from triton import knobs

    from pagefleet_engine.kernels.baked import counted

    before = knobs.compilation.listener
    with counted() as kernels:
        assert knobs.compilation.listener is kernels
    assert knobs.compilation.listener is before


def test_a_name_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    from pagefleet_engine.baking import tasks

    assert tasks.bake(tasks.Task("qwen3-0.6b", "H300")) == (
        "card 'H300' is none of A100, A10G, L4, L40S, H100, H200, B200"
    )
    nowhere = tasks.bake(tasks.Task("qwen3-0.6b/0", "H200"))
    assert nowhere == "model 'qwen3-0.6b/0' is on no GPU: give at least 1 after the /, or neither"
    refused = tasks.bake(tasks.Task("qwen4/2", "H200"))
    assert refused == "model 'qwen4' is none of smollm2-135m, qwen3-0.6b, llama-3.1-8b, llama-3.1-70b"


def test_a_model_is_named_with_its_gpus(tmp_path: Path) -> None:
    from pagefleet_engine.baking import known

    four = known.subject("llama-3.1-70b/4")
    assert (four.tensor_parallel, four.config.heads) == (4, 64)
    own = tmp_path / "config.json"
    fields = json.loads((Path(known.__file__).parent / "known.json").read_text())["models"]["qwen3-0.6b"]
    own.write_text(json.dumps(fields))
    assert known.subject(str(own)).tensor_parallel == 1
    assert known.subject(f"{own}/2").config == known.subject(str(own)).config


@pytest.mark.parametrize(("name", "brought"), [("H200", True), ("A100", False), ("B200", False)])
def test_a_card_that_is_not_there_is_taken_for_what_it_is(name: str, brought: bool) -> None:
    import torch

    from pagefleet_engine.baking import absent, known
    from pagefleet_engine.kernels import early_gemm

    weight = torch.empty(4096, 4096, dtype=torch.bfloat16, device=absent.NOWHERE)
    with absent.standing_in(known.card(name)):
        assert early_gemm.pays(8, weight) == brought
