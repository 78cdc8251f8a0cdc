"""What a case is, and parts that several have."""

from typing import Any, NamedTuple


class Case(NamedTuple):
    """A spec beside its model, the object whose parts do not go together, the field that is blamed, and why."""

    spec: dict[str, Any]
    place: str
    field: str
    words: str


LORA = {"name": "sql", "uri": "hf://org/sql"}
OTHERS = "leave it out, and put the version into the path of other URIs"
ON_VLLM: dict[str, Any] = {"runtime": "vllm", "image": "v", "device": "cuda"}
ON_SGLANG = {**ON_VLLM, "runtime": "sglang"}
