"""The generated files of this folder."""

from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.fleet import fleet

FOLDER = Path(__file__).parent
FILES = {"fleet.json": fleet}


def text(name: str) -> str:
    """The content of one generated file; equal bytes every time."""
    encoded: str = JSONEncoder(sort_keys=True, indent=2).encode(FILES[name]())
    return f"{encoded}\n"
