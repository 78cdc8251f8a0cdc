"""One command in several versions of this tree, which take turns on one machine.

    python -m bench.versions main one=bench/trials/one.patch both=bench/trials/one.patch,bench/trials/two.patch \\
        [--turns 2] [--keep FOLDER] -- python -m bench.step_profile --batches 192 256 --no-kernels --json {json}

NAME alone is the tree as it lies here; patches are applied in order to a copy. Versions run forwards, then backwards,
and so on, since a machine drifts, and cards of one name differ by more than most changes gain. The command writes rows
to {json}: one JSON object a line, with `work` and `value`, or `step` and `ms` (a list). Printed is the median of each
row by version, and how far each version is from the first one. Patches are not part of the product: what has gained is
merged, what has not is deleted, and bench/LOG.md says which.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_LEFT_OUT = (".*", "__pycache__", "results")
"""Of a copy: what measuring needs lies elsewhere."""
_APPLYING = (("git", "apply"), ("patch", "-p1", "-i"))
"""Either will do; not every machine has both."""
Figures = Mapping[str, Mapping[str, list[float]]]
"""By work and version, one number a turn."""


class Version(NamedTuple):
    """The tree with patches on it."""

    name: str
    patches: tuple[Path, ...]


def version(text: str) -> Version:
    """NAME, or NAME=PATCH,PATCH. Raises argparse's error where a patch is not there."""
    name, _, given = text.partition("=")
    patches = tuple(Path(each).resolve() for each in given.split(",") if each)
    for patch in patches:
        if not patch.is_file():
            raise argparse.ArgumentTypeError(f"{text}: {patch} is not there")
    return Version(name, patches)


def copied(tree: Path, wanted: Version, into: Path) -> Path:
    """A copy of `tree` with the version's patches. Raises CalledProcessError where one does not fit."""
    applying = next(each for each in _APPLYING if shutil.which(each[0]))
    copy = shutil.copytree(tree, into / wanted.name, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    for patch in wanted.patches:
        subprocess.run([*applying, str(patch)], cwd=copy, check=True, env=os.environ | {"GIT_DIR": os.devnull})
    return copy


def turns(versions: Sequence[Version], count: int) -> Iterator[tuple[int, Version]]:
    """Every version `count` times: forwards, backwards, forwards."""
    for turn in range(count):
        for each in versions[:: -1 if turn % 2 else 1]:
            yield turn, each


def run(tree: Path, command: Sequence[str], rows: Path) -> list[dict[str, Any]]:
    """The rows that the command writes there; none, and its exit status told, where it fails."""
    rows.unlink(missing_ok=True)
    folders = os.pathsep.join(str(tree / name) for name in ("crds", "engine_image", "."))
    path = os.pathsep.join(filter(None, (folders, os.environ.get("PYTHONPATH"))))
    filled = [each.replace("{json}", str(rows)) for each in command]
    status = subprocess.run(filled, cwd=tree, env=os.environ | {"PYTHONPATH": path}, check=False).returncode
    if status:
        print(f"exit status {status}: {' '.join(filled)}", file=sys.stderr, flush=True)
    return [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []


def measured(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """The name and the figure of each row that has one."""
    for row in rows:
        if row.get("value") is not None:
            yield row["work"], row["value"]
        elif "ms" in row:
            yield row["step"], statistics.median(row["ms"])


def table(figures: Figures, names: Sequence[str]) -> list[str]:
    """A line for each work: medians by version, and in percent how far each is from the first version's."""
    lines = [f"{'':24}" + "".join(f"{name:>20}" for name in names)]
    for work, found in figures.items():
        medians = {name: statistics.median(found[name]) for name in names if found.get(name)}
        first = medians.get(names[0])
        cells = []
        for name in names:
            away = f" {100 * (medians[name] / first - 1):+.2f} %" if name in medians and first else ""
            cells.append(f"{f'{medians[name]:.4g}{away}' if name in medians else '-':>20}")
        lines.append(f"{work:24}" + "".join(cells))
    return lines


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", type=version, metavar="NAME[=PATCH,...]")
    parser.add_argument("--turns", type=int, default=2, help="how often each version runs (default: 2)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="all rows go there, NAME-TURN.jsonl")
    own, command = sys.argv[1:], []
    if "--" in own:
        own, command = own[: own.index("--")], own[own.index("--") + 1 :]
    arguments = parser.parse_args(own)
    if not command:
        parser.error("after -- comes the command, for example -- python -m bench.step_profile --json {json}")
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory(prefix="pagefleet-versions-") as scratch:
        kept = arguments.keep or Path(scratch) / "rows"
        kept.mkdir(parents=True, exist_ok=True)
        trees = {each.name: copied(Path.cwd(), each, Path(scratch)) for each in arguments.versions}
        for turn, each in turns(arguments.versions, arguments.turns):
            print(f"== {each.name}, turn {turn + 1} of {arguments.turns}", flush=True)
            rows = run(trees[each.name], command, kept.absolute() / f"{each.name}-{turn + 1}.jsonl")
            for work, value in measured(rows):
                figures[work][each.name].append(value)
    print("\n".join(table(figures, [each.name for each in arguments.versions])))


if __name__ == "__main__":
    main()
