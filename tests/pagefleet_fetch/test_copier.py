"""The Python that starts in any image, and what it copies out of one."""

import ast
import importlib.util
import os
import py_compile
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from pagefleet_api.copier import _OF_PYTHON, Layout
from pagefleet_fetch import copier, copying


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The files of an image of a model, with links as a hub's cache has them."""
    root = tmp_path / "image"
    (root / "blobs").mkdir(parents=True)
    (root / "models" / "part").mkdir(parents=True)
    (root / "blobs" / "w").write_bytes(b"weights")
    (root / "models" / "config.json").write_text("{}")
    (root / "models" / "model.safetensors").symlink_to("../blobs/w")
    (root / "models" / "gone").symlink_to("nowhere")
    (root / "models" / "part" / "up").symlink_to("..")
    (root / "models" / "mounted").symlink_to("/proc")
    (root / "models" / "part" / "vocab.txt").write_text("a")
    os.mkfifo(root / "models" / "pipe")
    return root


def _copied(into: Path) -> dict[str, bytes]:
    return {str(path.relative_to(into)): path.read_bytes() for path in into.rglob("*") if path.is_file()}


def _run(source: Path, into: Path) -> int:
    into.mkdir(exist_ok=True)
    return copying.main([str(source), str(into), str(into.with_suffix(".told"))])


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A placed copier."""
    placed = Layout(str(tmp_path_factory.mktemp("home")))
    for _ in range(2):  # the second time over what the first has left, as after a restart of the container
        copier.place(placed)
    return placed


class _Ended(NamedTuple):
    """How a copier ended in an image's environment, as the kubelet sees it, and the copy."""

    status: int
    errors: str
    told: str | None
    copied: dict[str, bytes]


def _in_image(layout: Layout, image: Path, into: Path, environment: Mapping[str, str]) -> _Ended:
    into.mkdir()
    told = into.with_suffix(".told")
    command = [*layout.argv(), str(image / "models"), str(into), str(told)]
    try:
        done = subprocess.run(
            command,
            env={**environment, **layout.environment},
            cwd="/",
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"it waits for a named pipe of the image with {environment}")
    words = told.read_text() if told.exists() else None
    return _Ended(done.returncode, done.stderr, words, _copied(into / str(image).lstrip("/") / "models"))


def _hostile(image: Path, layout: Layout) -> dict[str, str]:
    """What an image may set to have its own code run. Whoever opens its pipes waits for ever."""
    spelled = "xx_XX.ISO-8859-15"
    for name in (spelled, spelled.replace("ISO-8859-15", "iso885915"), "C.UTF-8", "C.utf8"):
        (image / "locales" / name).mkdir(parents=True)
        os.mkfifo(image / "locales" / name / "LC_CTYPE")
    os.mkfifo(image / "gconv-modules")
    encodings = next(Path(layout.home).rglob("encodings")) / "__init__.py"
    bytecode = importlib.util.cache_from_source(str(encodings))
    source = image / "evil.py"
    source.write_text("import os\nos.write(2, b'the image runs\\n')\n")
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    cached = image / "bytecode" / Path(bytecode).parent.parent.relative_to("/") / Path(bytecode).name
    py_compile.compile(str(source), str(cached), invalidation_mode=unchecked)
    return {
        **dict.fromkeys(("LANG", "LC_ALL", "LC_CTYPE"), spelled),
        "LOCPATH": str(image / "locales"),
        "GCONV_PATH": str(image),
        "PYTHONPYCACHEPREFIX": str(image / "bytecode"),
        "PYTHONHOME": str(image),
        "PYTHONPATH": str(image),
        "LD_LIBRARY_PATH": "/nowhere",
        "GLIBC_TUNABLES": "glibc.malloc.check=3",
        **dict.fromkeys(("LD_PRELOAD", "LD_AUDIT"), "/evil.so"),
        "LD_DEBUG": "all",
        "LD_PROFILE": "libc.so.6",
        "LD_ASSUME_KERNEL": "9.9.9",
        "LD_BIND_NOW": "1",
    }


def test_a_placed_copier_runs_without_the_library_and_nothing_that_the_image_sets(
    image: Path, layout: Layout, tmp_path: Path
) -> None:
    ended = _in_image(layout, image, tmp_path / "into", _hostile(image, layout))
    assert (ended.status, ended.errors) == (0, ""), "nothing of it ran, or would be told in place of a cause"
    assert ended.told == "copied 3 files, 10 bytes"
    assert ended.copied["model.safetensors"] == b"weights"
    assert Path(layout.nothing).stat().st_size == 0
    size_mb = sum(path.stat().st_size for path in Path(layout.home).rglob("*") if path.is_file()) / 1e6
    assert size_mb < 60, f"each pod writes it: {size_mb:.0f} MB"


@pytest.mark.parametrize("value", ["1", "x", "/evil"])
def test_no_variable_that_python_knows_keeps_it_from_its_work(
    image: Path, layout: Layout, tmp_path: Path, value: str
) -> None:
    told = subprocess.run([sys.executable, "--help-env"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"^(PYTHON\w+)", told, re.MULTILINE)) | set(_OF_PYTHON)
    assert "PYTHONHASHSEED" in known
    ended = _in_image(layout, image, tmp_path / "into", dict.fromkeys(known, value))
    assert (ended.status, ended.errors) == (0, ""), known
    assert ended.told


@pytest.mark.parametrize("value", ["", "1"])
def test_where_the_loader_only_lists_libraries_nothing_says_that_the_model_was_copied(
    image: Path, layout: Layout, tmp_path: Path, value: str
) -> None:
    ended = _in_image(layout, image, tmp_path / "into", {"LD_TRACE_LOADED_OBJECTS": value})
    assert (ended.status, ended.told, ended.copied) == (0, None, {})


def test_it_fails_where_it_cannot_say_that_it_has_copied(
    image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "into.told").mkdir()
    assert _run(image / "models", tmp_path / "into") == 1
    assert f"copied, but cannot say so in {tmp_path}/into.told: Is a directory" in capsys.readouterr().err


def test_it_needs_nothing_of_the_standard_library() -> None:
    tree = ast.parse(Path(copying.__file__).read_text(encoding="utf-8"))
    names = {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert names <= set(sys.builtin_module_names) | {"os"}, "os is frozen in Python since 3.11"


def test_it_ends_at_once_when_its_pod_is_to_go(tmp_path: Path) -> None:
    big, into = tmp_path / "big", tmp_path / "into"
    with big.open("wb") as file:
        file.truncate(1 << 40)  # takes no room, and takes long to read
    into.mkdir()
    slow = f"""
import os, sys, time
os.sendfile = lambda *_: time.sleep(0.01) or 1
os.statvfs = lambda _: os.statvfs_result((1, 1, 0, 0, 1 << 50, 0, 0, 0, 0, 0))
sys.argv[1:] = {[str(big), str(into), "/dev/null"]!r}
exec(compile(open({copying.__file__!r}).read(), {copying.__file__!r}, "exec"))
"""
    with subprocess.Popen([sys.executable, "-c", slow], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("copying 1 files")
        running.terminate()
        assert running.wait(60) == 143, "its own handler: the first process of a container has no other"


def test_what_is_no_file_is_refused_and_links_that_lead_nowhere_are_left_out(
    image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(image / "models" / "pipe", tmp_path / "into") == 1
    assert "is neither a file nor a folder" in capsys.readouterr().err
    (image / "models" / "itself").symlink_to("itself")
    (image / "models" / "through").symlink_to("config.json/x")
    assert _run(image / "models", tmp_path / "into") == 0


@pytest.mark.parametrize("file", ["w", None], ids=["with files", "without files"])
def test_links_that_lead_to_ever_more_folders_end_with_words(
    image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: str | None
) -> None:
    monkeypatch.setattr(copying, "_MOST_NAMES", 100)
    for number in range(40):
        folder = image / f"f{number}"
        folder.mkdir()
        if file:
            (folder / file).touch()
        for link in "ab":
            (folder / link).symlink_to(f"../f{number + 1}")
    assert _run(image / "f0", tmp_path / "into") == 1
    assert "a model has no more than 100 files and folders, 100 deep" in capsys.readouterr().err
    monkeypatch.setattr(copying, "_DEEPEST", 5)
    assert _run(image / "f37", tmp_path / "into") == 0
    assert _run(image / "f32", tmp_path / "into") == 1


def test_a_folder_of_ever_more_names_is_not_read_to_its_end(
    image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless:
        name = "w"
        read = 0

        def __enter__(self) -> "Endless":
            return self

        def __exit__(self, *_: object) -> None: ...

        def __iter__(self) -> Iterator["Endless"]:
            while True:
                self.read += 1
                assert self.read < 200
                yield self

    monkeypatch.setattr(copying, "_MOST_NAMES", 100)
    monkeypatch.setattr(os, "scandir", lambda _: Endless())
    assert _run(image / "models", tmp_path / "into") == 1
    assert "a model has no more than 100 files and folders" in capsys.readouterr().err


def test_what_lies_on_another_disk_is_told_where_a_path_was_named(image: Path, tmp_path: Path) -> None:
    found = image.stat()
    elsewhere = (found.st_dev + 1, 1)
    with pytest.raises(copying.CannotCopy, match="is mounted, as a VOLUME of the image is"):
        copying._is_inside("/models/volume", found, elsewhere)
    assert copying._is_inside("/models/folder", found, (found.st_dev, 1))
    root, other = Path("/").stat(), Path("/proc").stat()
    assert not copying._is_inside("/proc", other, (root.st_dev, root.st_ino))


def test_a_name_in_an_image_writes_no_line_of_the_status(
    image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (image / "models" / "a\nReady").mkdir()
    assert _run(image / "models" / "a\nReady" / "x", tmp_path / "into") == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_links_become_what_they_lead_to_and_what_is_no_file_or_of_another_file_system_is_left_out(
    image: Path, tmp_path: Path
) -> None:
    into = tmp_path / "into"
    assert _run(image / "models", into) == 0
    found = _copied(into / str(image).lstrip("/") / "models")
    assert found == {"config.json": b"{}", "model.safetensors": b"weights", "part/vocab.txt": b"a"}
    assert _run(image / "models", into) == 0, "a second try goes over the first"


def test_a_single_file_is_copied_to_its_place(image: Path, tmp_path: Path) -> None:
    into = tmp_path / "into"
    assert _run(image / "models" / "model.safetensors", into) == 0
    assert _copied(into) == {f"{image}/models/model.safetensors".lstrip("/"): b"weights"}


def test_a_path_that_is_not_there_is_named_with_what_is(
    image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(image / "model" / "deep", tmp_path / "into") == 1
    words = f"the image has no {image}/model/deep; {image} has blobs, models\n"
    assert capsys.readouterr().err == words
    assert _run(image / "models" / "config.json" / "x", tmp_path / "into") == 1
    assert "the image has no" in capsys.readouterr().err


def test_a_model_larger_than_the_disk_is_refused_but_what_an_earlier_try_left_is_room(tmp_path: Path) -> None:
    size, left = 1 << 60, tmp_path / "left"
    with pytest.raises(copying.CannotCopy, match=f"no room for the model: it has {size} bytes, and the node's disk"):
        copying.check_room([("/w", str(left), size)], str(tmp_path))
    left.write_bytes(b"0123")
    disk = os.statvfs(tmp_path)
    copying.check_room([("/w", str(left), disk.f_bavail * disk.f_frsize // 2)], str(tmp_path))


def test_a_file_that_may_not_be_read_is_named_with_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "w").touch()
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(copying.CannotCopy, match=rf"user {os.getuid()} may not read {tmp_path}/w of the image"):
        copying.copy(str(tmp_path / "w"), str(tmp_path / "t"), 0)


def test_a_disk_that_fills_up_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fill(*_: object) -> int:
        raise OSError(28, "No space left on device")

    (tmp_path / "w").write_text("weights")
    monkeypatch.setattr(os, "sendfile", fill)
    with pytest.raises(copying.CannotCopy, match="no room for it on the node's disk"):
        copying.copy(str(tmp_path / "w"), str(tmp_path / "t"), 7)


def test_a_program_without_a_loader_is_named(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/bin/sh")
    with pytest.raises(OSError, match="asks for no dynamic loader"):
        copier.interpreter_of(tmp_path / "script")
