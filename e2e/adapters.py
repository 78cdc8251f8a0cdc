"""An adapter of a model, as a web server has it."""

from pathlib import Path

from safetensors.numpy import load_file

from tests.pagefleet_engine.adapter_folders import write_adapter

NAME = "sql"
_MODULES = ("q_proj", "v_proj", "down_proj")


def published(folder: Path, model: Path) -> dict[str, bytes]:
    """Files by their paths, below `NAME`, of an adapter that changes the answers of the model in that folder."""
    shapes = {name: tensor.shape for name, tensor in load_file(model / "model.safetensors").items()}
    write_adapter(folder, shapes, _MODULES, gain=4.0)
    return {f"{NAME}/{path.name}": path.read_bytes() for path in folder.iterdir()}
