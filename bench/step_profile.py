"""Where the time of a step goes on a GPU: `python -m bench.step_profile --model llama-8b-shape [--json OUT]`.

With `--batches N...` there are decode steps of so many rows alone, with `--no-kernels` no profile: to compare versions.
With `--adapters N` there are N random LoRA adapters of rank 16 of all matrices, and every row asks for one of them.

Decode steps at a context of 1,024 tokens, launched one ahead as the engine's loop does, and one prefill step of
8,192 tokens; milliseconds a step from the host's clock, and microseconds by kernel from torch's profiler.
"""

import argparse
import functools
import itertools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bench.engine.shapes import write_shape
from pagefleet_api.launch import Adapter, Launch
from pagefleet_api.sizing import blocks_for
from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.source import resolve
from pagefleet_engine.models.tensor_names import expected_shapes
from pagefleet_engine.runner import loading
from pagefleet_engine.steps import Runner, Sampling, SequenceStep, StepPlan
from tests.pagefleet_engine.adapter_folders import write_adapter

CONTEXT, STEPS = 1024, 48
BATCHES = (1, 8, 64, 256)
PROMPTS, PROMPT_TOKENS = 4, 2048
SAMPLING = Sampling(seed=1, temperature=0.6)
RANK = 16
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


_ids = itertools.count()


def decode_steps(batch: int, count: int, adapters: int) -> list[StepPlan]:
    """`count` steps of `batch` sequences whose context is about CONTEXT tokens; the first names its tokens."""
    blocks = blocks_for(CONTEXT + count + 1)
    tables = [tuple(range(row * blocks, (row + 1) * blocks)) for row in range(batch)]
    ids = [next(_ids) for _ in range(batch)]
    return [
        StepPlan(
            tuple(
                SequenceStep(
                    sequence_id=ids[row],
                    token_ids=(row + 1,) if index == 0 else None,
                    start=CONTEXT + index,
                    block_table=tables[row],
                    sample=True,
                    sampling=SAMPLING,
                    adapter=row % adapters if adapters else None,
                )
                for row in range(batch)
            )
        )
        for index in range(count)
    ]


def prefill_step(adapters: int) -> StepPlan:
    """Whole prompts that fill a step."""
    blocks = blocks_for(PROMPT_TOKENS)
    return StepPlan(
        tuple(
            SequenceStep(
                sequence_id=next(_ids),
                token_ids=tuple(range(PROMPT_TOKENS)),
                start=0,
                block_table=tuple(range(row * blocks, (row + 1) * blocks)),
                sample=True,
                sampling=SAMPLING,
                adapter=row % adapters if adapters else None,
            )
            for row in range(PROMPTS)
        )
    )


def run(runner: Runner, plans: Sequence[StepPlan]) -> float:
    """Seconds for all plans, one launched while the one before computes."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    pending = runner.launch(plans[0])
    for plan in plans[1:]:
        following = runner.launch(plan)
        pending.results()
        pending = following
    pending.results()
    return time.perf_counter() - started


def by_kernel(work: Callable[[], object]) -> list[tuple[str, int, float]]:
    """Kernel, launches and microseconds of `work`, longest first."""
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        work()
        torch.cuda.synchronize()
    count: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            count[event.name] += 1
            spent[event.name] += event.device_time if hasattr(event, "device_time") else event.cuda_time
    return [(name, count[name], round(us, 1)) for name, us in spent.most_common(14)]


def measure(model: str, launch: Launch, batches: Sequence[int] | None, *, kernels: bool) -> list[dict[str, Any]]:
    """One line a step kind: decodes of these batches, or of BATCHES and a prefill."""
    adapters = len(launch.adapters)
    loaded = loading.load(launch)
    runner: Any = loaded.runner
    for memory in runner._decoder.memory:
        memory.normal_(0, 0.5)
    while runner.idle_work():
        pass
    lines: list[dict[str, Any]] = [{"model": model, "phases_s": loaded.phase_s, "memory_bytes": loaded.memory_bytes}]
    for batch in batches or BATCHES:
        run(runner, decode_steps(batch, 4, adapters))
        runs = sorted(run(runner, decode_steps(batch, STEPS, adapters)) / STEPS * 1e3 for _ in range(3))
        lines.append({"model": model, "step": f"decode-b{batch}", "ms": runs})
        if kernels:
            lines[-1]["kernels_of_2"] = by_kernel(functools.partial(run, runner, decode_steps(batch, 2, adapters)))
    if batches is None:
        run(runner, [prefill_step(adapters)])
        runs = sorted(run(runner, [prefill_step(adapters) for _ in range(4)]) / 4 * 1e3 for _ in range(3))
        tok_s = PROMPTS * PROMPT_TOKENS / runs[1] * 1e3
        lines.append({"model": model, "step": "prefill-4x2k", "ms": runs, "tok_s": round(tok_s)})
        if kernels:
            lines[-1]["kernels"] = by_kernel(lambda: run(runner, [prefill_step(adapters)]))
    return lines


def random_adapters(folder: Path, count: int) -> tuple[Adapter, ...]:
    """Adapters for the model in `folder`, written beside it."""
    shapes = expected_shapes(read_config(resolve(f"file://{folder}", weights=False)))
    paths = [write_adapter(folder / f"adapter-{seed}", shapes, MODULES, rank=RANK, seed=seed) for seed in range(count)]
    return tuple(Adapter(path.name, str(path)) for path in paths)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama-8b-shape")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--adapters", type=int, default=0, metavar="N")
    parser.add_argument("--batches", type=int, nargs="+", metavar="N")
    parser.add_argument("--kernels", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    folder = write_shape(arguments.model, Path(tempfile.gettempdir()))
    launch = Launch(
        model=f"file://{folder}",
        adapters=random_adapters(folder, arguments.adapters),
        load_format="dummy",
        device="cuda",
        dtype="bfloat16",
        max_model_len=4096,
    )
    lines = measure(arguments.model, launch, arguments.batches, kernels=arguments.kernels)
    for line in lines:
        kernels = line.pop("kernels_of_2", None) or line.pop("kernels", None) or []
        print(json.dumps(line))
        for name, count, us in kernels:
            print(f"    {us:10.1f} us {count:5d} x {name[:110]}")
        line["kernels"] = kernels
    if arguments.json:
        arguments.json.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
