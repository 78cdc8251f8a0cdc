"""The Python that starts in any image, and what it copies out of one."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pagefleet_api.copier import Layout
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
    return copying.main([str(source), str(into)])


def test_a_placed_copier_runs_without_the_library_and_the_environment_of_where_it_is(
    image: Path, tmp_path: Path
) -> None:
    layout = Layout(str(tmp_path / "home"))
    for _ in range(2):  # the second time over what the first has left, as after a restart of the container
        copier.place(layout)
    into = tmp_path / "into"
    into.mkdir()
    command = [*layout.argv(), str(image / "models"), str(into)]
    of_image = {
        "PYTHONIOENCODING": "latin-1",
        "PYTHONPLATLIBDIR": "lib64",
        "LD_PRELOAD": "/evil.so",
        "PYTHONDEVMODE": "1",
    }
    of_image |= {"LD_LIBRARY_PATH": "/nowhere", "LANG": "de_DE.ISO-8859-1"}
    environment = {**of_image, **layout.environment}
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "nothing that a status would tell in place of the cause, and nothing was loaded"
    assert Path(layout.nothing).stat().st_size == 0
    assert _copied(into / str(image).lstrip("/") / "models")["model.safetensors"] == b"weights"
    size_mb = sum(path.stat().st_size for path in Path(layout.home).rglob("*") if path.is_file()) / 1e6
    assert size_mb < 60, f"each pod writes it: {size_mb:.0f} MB"


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
sys.argv[1:] = {[str(big), str(into)]!r}
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


def test_links_that_lead_to_ever_more_files_end_with_words(
    image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_MOST_FILES", 100)
    for number in range(12):
        folder = image / f"f{number}"
        folder.mkdir()
        (folder / "w").touch()
        for link in "ab":
            (folder / link).symlink_to(f"../f{number + 1}")
    assert _run(image / "f0", tmp_path / "into") == 1
    assert "a model has no more than 100 files" in capsys.readouterr().err
    monkeypatch.setattr(copying, "_DEEPEST", 5)
    assert _run(image / "f8", tmp_path / "into") == 0
    assert _run(image / "f4", tmp_path / "into") == 1


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
