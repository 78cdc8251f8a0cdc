"""What a model that transformers computes cannot be started with. Pure."""

from pagefleet_api.launch import Launch
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.runner.errors import LaunchImpossible


def check(launch: Launch, config: ModelConfig, device: str) -> None:
    """Raise LaunchImpossible for flags that are for the engine's own decoder alone."""
    if launch.load_format == "dummy":
        raise _refusal(config, "--load-format dummy", "needs its own weights; leave the flag out")
    if launch.adapters:
        reason = "takes no adapters; leave the flag out, or merge the adapter into the model"
        raise _refusal(config, f"--adapter {launch.adapters[0].name}", reason)
    if device == "cuda" and launch.tensor_parallel_size > 1:
        reason = "is not shared out among GPUs; give 1, or a model of the engine's own decoder"
        raise _refusal(config, f"--tensor-parallel-size {launch.tensor_parallel_size}", reason)
    if device == "cuda" and launch.batch_invariant:
        reason = "sums in an order that changes with the batch; leave the flag out"
        raise _refusal(config, "--batch-invariant", reason)


def _refusal(config: ModelConfig, flag: str, reason: str) -> LaunchImpossible:
    return LaunchImpossible(f"{flag}: a {config.architecture} model is computed by transformers' code, and {reason}")
