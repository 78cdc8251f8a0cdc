"""What of an adapter's folder is read, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from pagefleet_api.launch import Adapter
from pagefleet_engine.models import config_fields
from pagefleet_engine.models.adapter_files import CONFIG_FILE, WEIGHTS_FILE, read_adapters
from pagefleet_engine.models.errors import ModelBroken, ModelNotFound, ModelUnsupported


def folder(tmp_path: Path, **settings: Any) -> Adapter:
    """An adapter's folder without weights in it: nobody reads them here."""
    config = {"peft_type": "LORA", "r": 16, "lora_alpha": 32, "bias": "none", "init_lora_weights": True} | settings
    (tmp_path / CONFIG_FILE).write_text(json.dumps(config))
    (tmp_path / WEIGHTS_FILE).write_bytes(b"")
    return Adapter("sql", str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "scale"),
    [({}, 2.0), ({"use_rslora": True}, 8.0), ({"lora_alpha": 8, "r": 4}, 2.0), ({"lora_alpha": None}, 0.5)],
    ids=["alpha over r", "alpha over the root of r", "others", "PEFT's alpha"],
)
def test_the_scale_is_peft_s(tmp_path: Path, settings: dict[str, Any], scale: float) -> None:
    [read] = read_adapters([folder(tmp_path, **settings)])
    assert (read.name, read.weights_path, read.scale) == ("sql", tmp_path / WEIGHTS_FILE, scale)


def test_what_peft_writes_beside_is_no_obstacle(tmp_path: Path) -> None:
    written: dict[str, Any] = {
        "auto_mapping": None, "base_model_name_or_path": "org/base", "inference_mode": True, "lora_dropout": 0.1,
        "target_modules": ["q_proj"], "rank_pattern": {}, "alpha_pattern": {}, "modules_to_save": None,
        "use_dora": False, "layers_to_transform": None, "task_type": "CAUSAL_LM", "exclude_modules": None,
        "loftq_config": {}, "megatron_config": None, "trainable_token_indices": None, "qalora_group_size": 16,
    }  # fmt: skip
    assert read_adapters([folder(tmp_path, **written)])[0].rank == 16


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; this engine runs only 'LORA'"),
        ({"bias": "all"}, "bias is 'all'; this engine runs only 'none'"),
        ({"use_dora": True}, "use_dora is True; DoRA needs"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is ['lm_head']; this engine adapts linear layers"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern is {'q_proj': 8}"),
        ({"alora_invocation_tokens": [5]}, "alora_invocation_tokens is [5]"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'; such an adapter fits"),
        ({"r": 0}, "r is 0; a whole number of at least 1 is needed"),
        ({"r": 10**30}, f"r is {10**30}; a whole number of at least 1 is needed, and below 2 to the 63rd"),
        ({"lora_alpha": 10**400}, f"lora_alpha is {10**400}; a number above 0 is needed"),
        ({"lora_alpha": "many"}, "lora_alpha is 'many'; a number above 0 is needed"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_computed_is_refused_by_field_and_value(
    tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(ModelUnsupported) as refused:
        read_adapters([folder(tmp_path, **settings)])
    assert f"adapter 'sql': {tmp_path / CONFIG_FILE}: {says}" in str(refused.value)


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
def test_a_missing_file_is_named_with_the_way_out(tmp_path: Path, name: str) -> None:
    adapter = folder(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ModelNotFound) as missing:
        read_adapters([adapter])
    assert f"adapter 'sql': there is no {tmp_path / name}; give --adapter sql=PATH" in str(missing.value)


@pytest.mark.parametrize("text", ["{", "[" * 200_000, '{"r": ' + "9" * 5000 + "}"], ids=["cut", "deep", "long"])
def test_a_configuration_that_is_not_json_is_named(tmp_path: Path, text: str) -> None:
    adapter = folder(tmp_path)
    (tmp_path / CONFIG_FILE).write_text(text)
    with pytest.raises(ModelBroken, match="is not JSON"):
        read_adapters([adapter])


def test_a_configuration_of_any_size_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = folder(tmp_path)
    monkeypatch.setattr(config_fields, "MOST_BYTES", 1 << 20)
    with (tmp_path / CONFIG_FILE).open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(ModelBroken, match=r"adapter_config\.json is larger than 1 MiB"):
        read_adapters([adapter])
