"""The requests of each work: same seed, same requests. Pure.

Prompts are lists of token ids of the first ten thousand, as in the peers' measurements; lengths and seeds too.
"""

import random
from dataclasses import dataclass
from typing import NamedTuple

IDS = 10_000
LETTERS = 256
"""Ids below are single bytes, which would be no text by themselves."""
Prompt = tuple[int, ...]


class Batch(NamedTuple):
    """Prompts, and how many tokens each answer has."""

    prompts: list[Prompt]
    outputs: list[int]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each prompt."""
        return [len(prompt) for prompt in self.prompts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large the works are; `full` is what figures are compared at, `small` shows that the benchmark runs."""

    mixed_requests: int
    mixed_tokens: tuple[int, int]
    longest: tuple[int, int]
    """Tokens of a prompt and of an answer at most, where a work's name tells them."""
    rounds: int
    """Requests of each client in a closed loop."""
    decode_context: int
    decode_steps: int
    repeats: int
    greedy_prompt: int
    greedy_answer: int
    group_count: int
    group_size: int
    shared_tokens: int
    own_tokens: int
    group_answer: int
    group_clients: tuple[int, int]
    """Few clients in a closed loop, and all at once."""
    streams: int
    stream_prompt: int
    stream_answer: int
    long_prompt: int
    calm_s: float
    turns: int
    static_seats: int
    static_requests: int
    static_mean: int
    eviction_blocks: int
    eviction_prompts: int
    eviction_visits: int
    seats: int
    offline_model_len: int
    online_model_len: int
    warm_up: tuple[int, int, int]
    """Clients, prompt and answer tokens of the load that a server gets before it is measured."""

    def cut(self, prompt: int, answer: int) -> tuple[int, int]:
        """The tokens that a work's name tells, no more than `longest`."""
        return min(prompt, self.longest[0]), min(answer, self.longest[1])


GREEDY_REQUESTS = 16
FULL = Scale(
    mixed_requests=256, mixed_tokens=(100, 1024), longest=(131_072, 131_072), rounds=4,
    decode_context=1024, decode_steps=128, repeats=3,
    greedy_prompt=512, greedy_answer=64,
    group_count=8, group_size=32, shared_tokens=2048, own_tokens=128, group_answer=64, group_clients=(16, 256),
    streams=64, stream_prompt=1024, stream_answer=1536, long_prompt=32_768, calm_s=4.5, turns=4,
    static_seats=64, static_requests=512, static_mean=128,
    eviction_blocks=4096, eviction_prompts=64, eviction_visits=192,
    seats=512, offline_model_len=4096, online_model_len=40_960, warm_up=(8, 512, 32),
)  # fmt: skip
SMALL = Scale(
    mixed_requests=4, mixed_tokens=(4, 12), longest=(8, 4), rounds=1, decode_context=4, decode_steps=4, repeats=2,
    greedy_prompt=24, greedy_answer=6,
    group_count=2, group_size=3, shared_tokens=64, own_tokens=8, group_answer=4, group_clients=(2, 6),
    streams=2, stream_prompt=16, stream_answer=96, long_prompt=192, calm_s=0.6, turns=2,
    static_seats=2, static_requests=4, static_mean=4,
    eviction_blocks=16, eviction_prompts=8, eviction_visits=12,
    seats=256, offline_model_len=512, online_model_len=512, warm_up=(1, 8, 2),
)  # fmt: skip
SCALES = {"full": FULL, "small": SMALL}


def ids(source: random.Random, count: int, most: int = IDS) -> Prompt:
    """`count` ids of whole words."""
    return tuple(source.randrange(LETTERS, most) for _ in range(count))


def mixed(scale: Scale, vocab_size: int) -> Batch:
    """nano-vllm's offline workload: prompts and outputs uniform in 100..1024 (its bench.py, seed 0)."""
    source, most = random.Random(0), min(IDS, vocab_size - 1)
    least, longest = scale.mixed_tokens
    count = scale.mixed_requests
    prompts = [tuple(source.randint(0, most) for _ in range(source.randint(least, longest))) for _ in range(count)]
    return Batch(prompts, [source.randint(least, longest) for _ in range(count)])


def uniform(count: int, length: int, output: int, seed: int, vocab_size: int) -> Batch:
    """`count` prompts of one length."""
    source = random.Random(seed)
    return Batch([ids(source, length, min(IDS, vocab_size)) for _ in range(count)], [output] * count)


def greedy(scale: Scale, vocab_size: int) -> Batch:
    """The requests whose answers are checked: lengths spread up to the scale's."""
    source, most = random.Random(16), min(IDS, vocab_size)
    lengths = [max(1, scale.greedy_prompt * (number + 1) // GREEDY_REQUESTS) for number in range(GREEDY_REQUESTS)]
    return Batch([ids(source, length, most) for length in lengths], [scale.greedy_answer] * GREEDY_REQUESTS)


def groups(scale: Scale, seed: int, vocab_size: int) -> Batch:
    """Groups that share a long prefix, in shuffled order."""
    source, most = random.Random(seed), min(IDS, vocab_size)
    shared = [ids(source, scale.shared_tokens, most) for _ in range(scale.group_count)]
    prompts = [prefix + ids(source, scale.own_tokens, most) for prefix in shared for _ in range(scale.group_size)]
    source.shuffle(prompts)
    return Batch(prompts, [scale.group_answer] * len(prompts))


def skewed(scale: Scale, vocab_size: int) -> Batch:
    """Outputs exponential around a mean, cut at 12 means: many short answers and a few long ones."""
    source, most = random.Random(5), min(IDS, vocab_size)
    mean = scale.static_mean
    outputs = [min(max(1, round(source.expovariate(1 / mean))), 12 * mean) for _ in range(scale.static_requests)]
    return Batch([ids(source, mean, most) for _ in outputs], outputs)
