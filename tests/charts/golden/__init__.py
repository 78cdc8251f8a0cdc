"""What the chart renders for each file in tests/charts/values, the CRD aside."""

from pathlib import Path

import yaml

from tests.charts.helm import render

_HERE = Path(__file__).parent
VALUES = _HERE.parent / "values"
CASES = tuple(sorted(path.stem for path in VALUES.glob("*.yaml")))


def golden_path(case: str) -> Path:
    return _HERE / f"{case}.yaml"


def text(case: str) -> str:
    """All objects of one case in the order of the render, keys sorted."""
    objects = render(f"--values={VALUES / case}.yaml")
    kept = [manifest for manifest in objects if manifest["kind"] != "CustomResourceDefinition"]
    return yaml.safe_dump_all(kept, sort_keys=True, width=100)
