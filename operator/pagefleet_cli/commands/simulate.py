"""`pagefleet simulate`: what a policy would have done with a trace of requests."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from pagefleet_cli.options import number, time, whole

EXCEEDED = 3

HELP = """Play a trace of requests against a policy, with the operator's own decision, in simulated time.

A trace has the columns arrival_s,prompt_tokens,output_tokens (CSV, or JSONL with these keys), or is a public Azure LLM
inference or BurstGPT trace, or the JSON of a Prometheus range query for requests a second.

A policy FILE of a live service (kubectl get infs NAME -o yaml) says how long its pods take to start and what their
cache holds; without that, starts take 60 s (95 of 100: 90 s), and a pod is an 8B model on one H200.

Exit code: 0 answered; 2 for a wrong FILE or option; 3 when --policy exceeds one of the --max limits, or when
matplotlib, which -o png and html need, is not installed.
"""


class Output(StrEnum):
    """How to print the answer."""

    TABLE = "table"
    JSON = "json"
    HTML = "html"
    PNG = "png"


class BalancingOption(StrEnum):
    """As `simulation.Balancing`, which is imported only when it is used."""

    LEAST_LOAD = "least-load"
    RANDOM = "random"


def _file(option: str, words: str) -> Any:
    return typer.Option(option, metavar="FILE", help=words)


TraceFile = Annotated[str, _file("--trace", "Requests: CSV, JSONL, or a Prometheus range; - is standard input.")]
PolicyFile = Annotated[str, _file("--policy", "YAML of an InferenceService, or its autoscaling section.")]
OtherFile = Annotated[str | None, _file("--against", "Another policy, side by side.")]
CostsFile = Annotated[Path | None, _file("--costs", "Cost of a step, as the engine's --paced-costs.")]
Format = Annotated[Output, typer.Option("-o", "--output", help="How to print the answer.")]
Target = Annotated[Path | None, typer.Option("--out", metavar="PATH", help="Write there, not to standard output.")]
Seed = Annotated[int, whole("Of chance; equal seeds give equal answers.", "a whole number")]
KvTokens = Annotated[int | None, whole("Tokens that a pod's KV cache holds.", "a whole number of tokens", 1)]
Start = Annotated[float | None, time("Median time until a pod is ready, for example 90s.")]
SlowStart = Annotated[float | None, time("Time until 95 of 100 pods are ready.")]
Initial = Annotated[int | None, whole("Ready pods at the beginning.", "a whole number of pods", 1, 10_000)]
Balance = Annotated[BalancingOption, typer.Option(help="Which ready pod gets a request.")]
Gpus = Annotated[int | None, whole("For GPU hours; a pod without GPUs counts as one.", "a whole number of GPUs", 1)]
Price = Annotated[float | None, number("Of a GPU hour, for the cost.", "an amount of money such as 2.5")]
Slo = Annotated[float | None, time("Time to the first token that 95 of 100 may take, for example 500ms.", 0.001)]
Tokens = Annotated[int, whole("Of each request of a Prometheus range.", "a whole number of tokens", 1)]
MostMinutes = Annotated[int | None, whole("Exit 3 when it is more.", "a whole number of minutes", 0)]
MostHours = Annotated[float | None, number("Exit 3 when it is more.", "GPU hours such as 2.5")]
MostWait = Annotated[float | None, time("Exit 3 when it is more.")]


def simulate(
    trace: TraceFile,
    policy: PolicyFile,
    against: OtherFile = None,
    output: Format = Output.TABLE,
    out: Target = None,
    seed: Seed = 0,
    costs: CostsFile = None,
    kv_tokens: KvTokens = None,
    cold_start: Start = None,
    cold_start_p95: SlowStart = None,
    initial_replicas: Initial = None,
    balancing: Balance = BalancingOption.LEAST_LOAD,
    gpus_per_pod: Gpus = None,
    gpu_price: Price = None,
    slo_ttft: Slo = None,
    prompt_tokens: Tokens = 1000,
    output_tokens: Tokens = 250,
    max_slo_violation_minutes: MostMinutes = None,
    max_gpu_hours: MostHours = None,
    max_p95_wait_s: MostWait = None,
) -> None:
    """See HELP."""
    from pagefleet_cli.rehearsal import policies, running

    options = policies.Options(
        costs, kv_tokens, cold_start, cold_start_p95, initial_replicas, balancing.value, gpus_per_pod, slo_ttft
    )
    chance = running.Chance(seed, prompt_tokens, output_tokens)
    files = [policy] if against is None else [policy, against]
    runs = running.run(trace, files, options, chance, gpu_price)
    running.write(runs, output.value, out)
    exceeded = running.Limits(max_slo_violation_minutes, max_gpu_hours, max_p95_wait_s).exceeded(runs[0])
    for line in exceeded:
        typer.echo(line, err=True)
    raise typer.Exit(EXCEEDED if exceeded else 0)
