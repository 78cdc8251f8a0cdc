"""What is built once and kept."""

from pathlib import Path

import pytest

from e2e.cluster.locks import built_once, is_built


class _Killed(BaseException):
    pass


def test_a_build_that_ended_between_two_programs_counts_for_nothing(tmp_path: Path) -> None:
    wanted, built = tmp_path / "programs", []

    def fill(folder: Path) -> None:
        built.append(sorted(path.name for path in folder.iterdir()))
        (folder / "adapter").touch()
        if len(built) == 1:
            raise _Killed
        (folder / "operator").touch()

    assert not is_built(wanted)
    with pytest.raises(_Killed):
        built_once(wanted, fill)
    assert wanted.is_dir()
    assert not is_built(wanted), "an empty folder is what its lock left"
    for _ in range(2):
        found = sorted(path.name for path in built_once(wanted, fill).iterdir())
        assert found == ["adapter", "operator"]
    assert built == [[], []], "from nothing each time, and no more once it is there"
