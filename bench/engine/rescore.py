"""Greedy answers scored again by transformers on the same weights: every token must be its choice but for near ties.

The reference is transformers in float32. Random weights give flat logits, where bfloat16 alone moves the choice: what
transformers itself chooses in bfloat16 is scored in the same way, and tells how wide a near tie is.
"""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, LlamaConfig

from bench.engine.answers import Greedy
from bench.engine.results import Measured
from pagefleet_api.launch import Launch
from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.gguf import Gguf
from pagefleet_engine.models.random_weights import RandomWeights
from pagefleet_engine.models.source import GgufModel, ModelFiles, resolve
from pagefleet_engine.models.weights import Weights, open_weights

MAX_LOGIT_GAP = 0.1
MEAN_TIMES, WIDEST_TIMES = 1.5, 2.0
"""How far a chosen token's logit may be below the largest, or as far as transformers' own choices in bfloat16."""
EAGER_STEPS = 24


def reference(launch: Launch, dtype: torch.dtype, device: torch.device) -> Any:
    """transformers' model on the device with the engine's weights, taken over by name."""
    files = resolve(launch.model, weights=launch.load_format != "dummy")
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(_config(files), dtype=dtype, attn_implementation="sdpa").eval()
    finally:
        torch.set_default_dtype(before)
    weights = _weights(launch, files, model, dtype, device)
    with torch.inference_mode():
        for name, parameter in model.named_parameters():
            if parameter.dtype != dtype:
                raise TypeError(f"transformers made {name} in {parameter.dtype}, not {dtype}")
            parameter.copy_(weights.tensor(name))
    return model


def _weights(launch: Launch, files: ModelFiles, model: Any, dtype: torch.dtype, device: torch.device) -> Weights:
    if launch.load_format != "dummy":
        return open_weights(files, read_config(files))
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    return RandomWeights(shapes, device=device, dtype=dtype)


def _config(files: ModelFiles) -> Any:
    if not isinstance(files, GgufModel):
        return AutoConfig.from_pretrained(files.path)
    gguf = Gguf(files.path)
    said = {name.removeprefix("llama."): value for name, value in gguf.metadata.items()}
    heads = said["attention.head_count"]
    return LlamaConfig(
        vocab_size=gguf.arrays["tokenizer.ggml.tokens"].count,
        hidden_size=said["embedding_length"],
        intermediate_size=said["feed_forward_length"],
        num_hidden_layers=said["block_count"],
        num_attention_heads=heads,
        num_key_value_heads=said.get("attention.head_count_kv", heads),
        max_position_embeddings=said["context_length"],
        rms_norm_eps=said["attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": said.get("rope.freq_base", 10000.0)},
        tie_word_embeddings="output.weight" not in gguf.tensors,
    )


def logits(model: Any, answer: Greedy) -> torch.Tensor:
    """[tokens, vocabulary], float32: what each token of the answer was chosen from."""
    ids = torch.tensor([[*answer.prompt, *answer.answer[:-1]]], device=model.device)
    with torch.inference_mode():
        output = model(input_ids=ids, use_cache=False, logits_to_keep=len(answer.answer))
        found: torch.Tensor = output.logits[0].float()
    return found


def _below_best(scores: torch.Tensor, chosen: torch.Tensor) -> list[float]:
    short: list[float] = (scores.amax(-1) - scores.gather(1, chosen[:, None])[:, 0]).tolist()
    return short


def check(model: Any, answers: Sequence[Greedy]) -> dict[str, Any]:
    """The outcome for the rows: `passed`, the widest gap, and how many tokens were not the reference's own choice.

    Passed is what is within MAX_LOGIT_GAP of the best everywhere, or on average as near to it as transformers is in
    the number format that it came in; then the widest gap, one of a thousand, may be WIDEST_TIMES its widest.

    Changes the model to float32.
    """
    own = [logits(model, answer).argmax(-1) for answer in answers]
    model.float()
    widest: dict[str, float] = {}
    every: list[float] = []
    theirs: list[float] = []
    for answer, choice in zip(answers, own, strict=True):
        scores = logits(model, answer)
        short = _below_best(scores, torch.tensor(answer.answer, device=scores.device))
        widest[answer.origin] = round(max(widest.get(answer.origin, 0.0), *short), 4)
        every += short
        theirs += _below_best(scores, choice)
    mean, their_mean = sum(every) / max(len(every), 1), sum(theirs) / max(len(theirs), 1)
    near = max(every, default=0.0) <= max(MAX_LOGIT_GAP, WIDEST_TIMES * max(theirs, default=0.0))
    return {
        "by": "transformers in float32",
        "answers": len(answers),
        "tokens": len(every),
        "other_choices": sum(gap > 0 for gap in every),
        "widest_gap": max(widest.values(), default=None),
        "widest_gap_by_origin": widest,
        "widest_gap_of_transformers": round(max(theirs, default=0.0), 4),
        "other_choices_of_transformers": sum(gap > 0 for gap in theirs),
        "mean_gap": round(mean, 6),
        "mean_gap_of_transformers": round(their_mean, 6),
        "passed": bool(every) and near and (max(every) <= MAX_LOGIT_GAP or mean <= MEAN_TIMES * their_mean),
    }


def eager_step(model: Any, context: int) -> Measured:
    """Median milliseconds of transformers' eager decode step for one sequence at this context."""
    device = model.device
    cache, times = DynamicCache(), []
    with torch.inference_mode():
        token = torch.ones((1, context), dtype=torch.long, device=device)
        for _ in range(EAGER_STEPS + 3):
            began_s = time.perf_counter()
            output = model(input_ids=token, past_key_values=cache, use_cache=True, logits_to_keep=1)
            token = output.logits[:, -1].argmax(-1, keepdim=True)
            token.tolist()
            times.append(time.perf_counter() - began_s)
    inputs = {"inputs": f"batch 1, context {context}, {EAGER_STEPS} steps"}
    return Measured(statistics.median(times[3:]) * 1e3, "ms", None, inputs)
