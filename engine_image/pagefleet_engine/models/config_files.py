"""A model's files to its configuration: config.json with generation_config.json, or GGUF metadata."""

from pagefleet_engine.models import config_gguf, config_json
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.config_fields import read_json
from pagefleet_engine.models.gguf import Gguf
from pagefleet_engine.models.source import CONFIG_FILE, GENERATION_FILE, GgufModel, ModelFiles


def read_config(files: ModelFiles) -> ModelConfig:
    """The model's configuration. Raises ModelUnsupported naming the field, or ModelBroken."""
    if isinstance(files, GgufModel):
        return config_gguf.from_gguf(Gguf(files.path))
    generation = files.path / GENERATION_FILE
    return config_json.from_json(
        str(files.path / CONFIG_FILE),
        read_json(files.path / CONFIG_FILE),
        read_json(generation) if generation.is_file() else {},
    )
