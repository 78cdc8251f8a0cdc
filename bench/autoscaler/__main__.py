"""How fast an autoscaler answers a step of load, on a real cluster: `python -m bench.autoscaler --json OUT`.

A service of paced engines (real API, scheduler and KV books; steps take a GPU's time and compute nothing) holds one
pod's worth of requests; then six pods' worth come at once, stay, and go. Of each round: seconds from the step to the
number of replicas that answers it, how far that was exceeded, how long answers took longer than they should, and
whether any answer was cut on the way back down to one pod. With `--scaler both`, a HorizontalPodAutoscaler answers the
same steps by the same metric; with `--validate`, the simulator plays what was recorded.
"""

import argparse
import json
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bench.autoscaler.hpa import default_period
from bench.autoscaler.rounds import Measured, measure
from bench.autoscaler.rows import against_hpa, failed, summary
from bench.autoscaler.subjects import IN_FLIGHT_PER_POD, LEAST_PODS, Scaler
from bench.autoscaler.validation import Played, as_measured, predicted, trace_csv, validated
from e2e import release
from e2e.progress import Progress
from e2e.sites import BoxSite
from pagefleet_cli.rehearsal.policies import Options, read
from pagefleet_cli.simulation import Balancing

_BOTH = "both"


def main() -> int:
    """The exit status is 1 when our own autoscaler cut an answer, or exceeded the number."""
    given = _arguments()
    scalers = [Scaler(given.scaler)] if given.scaler != _BOTH else list(Scaler)
    measured = _measured(scalers, given.rounds)
    rows = {scaler: summary(scaler, each.rounds) for scaler, each in measured.items()}
    if Scaler.BUILTIN in rows and Scaler.HPA in rows:
        ours, hpas = measured[Scaler.BUILTIN].rounds, measured[Scaler.HPA].rounds
        rows[Scaler.BUILTIN]["against_hpa"] = against_hpa(ours, hpas)
    if given.validate:
        rows[Scaler.BUILTIN]["simulated"] = _validated(measured[Scaler.BUILTIN], given.json)
    for row in rows.values():
        _write(given.json, row)
    return 1 if failed(list(rows.values())) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.autoscaler", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scaler", choices=[*Scaler, _BOTH], default=Scaler.BUILTIN, help="who answers the steps")
    parser.add_argument("--rounds", type=int, default=5, help="steps to measure (default 5, a minute each)")
    parser.add_argument(
        "--validate", action="store_true", help="compare our own autoscaler's rounds with the simulator"
    )
    parser.add_argument("--json", type=Path, required=True, help="append the rows to this file; traces lie beside it")
    given = parser.parse_args()
    if given.validate and given.scaler == Scaler.HPA:
        parser.error("--validate plays our own autoscaler; give --scaler builtin or both")
    return given


def _measured(scalers: Sequence[Scaler], rounds: int) -> dict[Scaler, Measured]:
    progress, site = Progress(), BoxSite.here()
    ran_before = site.box.alive()
    names = site.bring_up(progress)
    try:
        with progress.step("Helm installs the chart"):
            release.install(site, names, more={"customMetrics": {"enabled": True}} if Scaler.HPA in scalers else {})
        measured = {}
        for scaler in scalers:
            with default_period(site.box) if scaler is Scaler.HPA else nullcontext():
                measured[scaler] = measure(site.kubectl, scaler, rounds, progress)
        return measured
    finally:
        if not ran_before:
            site.box.down()


def _validated(measured: Measured, beside: Path) -> dict[str, Any]:
    """Every round by the costs of the paced device alone, and by what a token took in it.

    `pagefleet simulate` can play the files too, which are kept in a folder beside the rows.
    """
    folder = beside.with_name(f"{beside.stem}-rounds")
    folder.mkdir(parents=True, exist_ok=True)
    policy = folder / "policy.json"
    policy.write_text(json.dumps(measured.service, indent=2) + "\n")
    rehearsed = read(str(policy), Options(initial_replicas=LEAST_PODS, balancing=Balancing.RANDOM))
    found = []
    for number, record in enumerate(measured.records, start=1):
        (folder / f"round-{number}.csv").write_text(trace_csv(record.requests))
        (folder / f"round-{number}.json").write_text(json.dumps(record._asdict()) + "\n")
        slower = as_measured(rehearsed.fleet, record.token_s, IN_FLIGHT_PER_POD)
        draw = random.Random(number).random
        found.append(Played(*(predicted(rehearsed.policy, record, fleet, draw) for fleet in (rehearsed.fleet, slower))))
    return validated(found)


def _write(path: Path, row: Mapping[str, Any]) -> None:
    text = json.dumps({**row, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as rows:
        rows.write(text + "\n")
    print(text)


if __name__ == "__main__":
    raise SystemExit(main())
