"""What an engine's step costs on a GPU: for the paced device, which takes that time, and for simulations."""

from importlib import resources

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, ValidationError

DEFAULT_COSTS = "paced_h200_8b.json"


class CostsUnusable(ValueError):
    """This is no file of costs; the text says what is wrong with it."""


class StepCosts(BaseModel):
    """What a step costs, in seconds, and how many KV blocks there are.

    The weights are read while tokens are multiplied with them, so the larger of both counts. `context_token_s` is
    for each position that a decode attends to, `pair_s` for each pair of query and key of a chunk.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    source: str
    fixed_s: NonNegativeFloat
    weights_s: NonNegativeFloat
    token_s: NonNegativeFloat
    context_token_s: NonNegativeFloat
    pair_s: NonNegativeFloat
    num_kv_blocks: int = Field(ge=1)

    def step_s(self, tokens: float, decode_context: float, chunk_pairs: float) -> float:
        """Seconds of a step with this work."""
        matrices_s = max(self.weights_s, self.token_s * tokens)
        return self.fixed_s + matrices_s + self.context_token_s * decode_context + self.pair_s * chunk_pairs


def parse(text: str | bytes) -> StepCosts:
    """The costs in JSON. Raises CostsUnusable."""
    try:
        return StepCosts.model_validate_json(text)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'it'}: {each['msg']}" for each in error.errors())
        fields = ", ".join(StepCosts.model_fields)
        raise CostsUnusable(f"{wrong}; the file is one JSON object with {fields}") from error


def default() -> StepCosts:
    """A Llama-3.1-8B shape on one H200."""
    return parse(resources.files(__package__).joinpath(DEFAULT_COSTS).read_bytes())
