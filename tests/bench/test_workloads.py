"""The requests of each work: the same every time, as large as they say, of ids that the model has."""

import random

import pytest

from bench.engine import workloads
from bench.engine.workloads import FULL, GREEDY_REQUESTS, SMALL, Batch, Scale

SCALES = pytest.mark.parametrize("scale", [FULL, SMALL], ids=["full", "small"])


def test_the_mixed_workload_is_nano_vllms() -> None:
    random.seed(0)
    prompts = [[random.randint(0, 10_000) for _ in range(random.randint(100, 1024))] for _ in range(256)]
    outputs = [random.randint(100, 1024) for _ in range(256)]
    batch = workloads.mixed(FULL, 128_256)
    assert [list(prompt) for prompt in batch.prompts] == prompts
    assert batch.outputs == outputs


@SCALES
def test_every_work_has_equal_requests_each_time_and_ids_inside_the_vocabulary(scale: Scale) -> None:
    vocab_size = 2048

    def all_works() -> list[Batch]:
        return [
            workloads.mixed(scale, vocab_size),
            workloads.uniform(3, 5, 2, 7, vocab_size),
            workloads.greedy(scale, vocab_size),
            workloads.groups(scale, 1, vocab_size),
            workloads.skewed(scale, vocab_size),
        ]

    for one, other in zip(all_works(), all_works(), strict=True):
        assert one == other
        assert len(one.prompts) == len(one.outputs)
        assert all(0 <= token < vocab_size for prompt in one.prompts for token in prompt)
        assert min(one.lengths) >= 1 and min(one.outputs) >= 1


def test_groups_share_their_prefix_and_nothing_else() -> None:
    batch = workloads.groups(SMALL, 3, 2048)
    heads = [prompt[: SMALL.shared_tokens] for prompt in batch.prompts]
    assert len(set(heads)) == SMALL.group_count
    assert all(heads.count(head) == SMALL.group_size for head in heads)
    assert len(set(batch.prompts)) == len(batch.prompts)
    assert set(batch.lengths) == {SMALL.shared_tokens + SMALL.own_tokens}


def test_the_answers_that_are_checked_are_16_with_prompts_of_all_lengths() -> None:
    batch = workloads.greedy(FULL, 128_256)
    assert len(batch.prompts) == GREEDY_REQUESTS == len(set(batch.lengths))
    assert max(batch.lengths) == FULL.greedy_prompt


def test_skewed_outputs_have_about_the_mean_and_a_few_very_long_ones() -> None:
    outputs = workloads.skewed(FULL, 128_256).outputs
    assert sum(outputs) / len(outputs) == pytest.approx(FULL.static_mean, rel=0.15)
    assert max(outputs) > 4 * FULL.static_mean
