"""A thousand scale-downs under streams, on a real cluster: `python -m bench.scale_downs --json OUT`.

Several services side by side swing between one pod and many under a load that waves. A scale-down is one pod that the
autoscaler had drained and removed, as the operator counts them; that its answers were kept is counted by the operator
(`pagefleet_drain_aborted_requests_total`) and by the client, which wants every token of every stream. Each round is a
row of OUT as soon as it is over, so a run that was cut off goes on where it was. Exit status 1 when anything was lost.
"""

import argparse
import json
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.engine import facts
from bench.scale_downs.rounds import Swinging
from bench.scale_downs.rows import Round, failed, missing, read, summary
from bench.scale_downs.subjects import NAMESPACE, Engines
from e2e import diagnosis, release
from e2e.cluster.box import Box
from e2e.cluster.layout import SCALE_DOWNS
from e2e.operator_pods import Operator
from e2e.progress import Progress
from e2e.sites import BoxSite, state_folder

_APART_S = 12.0
"""Services begin so long after one another: pods of some start, which takes the CPU, while others wait for streams."""


class Ledger:
    """The rows so far, in a file."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self._path, self._progress = path, progress
        self._writing = threading.Lock()
        self._commit = facts.commit()
        self.rounds = read(path.read_text()) if path.exists() else []

    def add(self, done: Round) -> None:
        with self._writing:
            self.rounds.append(done._replace(commit=self._commit))
            self._append(self.rounds[-1]._asdict())
            self._progress.line(self._told(done))

    def close(self) -> dict[str, Any]:
        """Write what all rounds say together, with where it comes from."""
        row = {**summary(self.rounds), "command": "make bench-scale-downs", "commit": self._commit}
        self._append(row)
        return row

    def _append(self, row: Mapping[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as rows:
            rows.write(json.dumps({**row, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}) + "\n")

    def _told(self, done: Round) -> str:
        so_far = summary(self.rounds)
        return (
            f"{so_far['scale_downs']} scale-downs, {so_far['aborted']} aborted, {so_far['cut']} cut; "
            f"{done.service}: {done.scale_downs} in {done.seconds:.0f} s, open on them {sorted(done.in_flight)}"
        )


def main() -> int:
    """Bring a cluster of its own up, make the scale-downs that are missing, and say what was lost."""
    given = _arguments()
    progress, site = Progress(), BoxSite(Box.at(state_folder() / "scale-downs", SCALE_DOWNS))
    ledger = Ledger(given.json, progress)
    try:
        names = site.bring_up_apart(progress)
        with progress.step("Helm installs the chart"):
            release.install(site, names)
        _all(site, ledger, given)
    finally:
        row = ledger.close()
        print(json.dumps(row))
        site.box.down()
    return 1 if failed(row) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.scale_downs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--paced", type=int, default=950, help="scale-downs of paced engines (default 950)")
    parser.add_argument("--real", type=int, default=50, help="scale-downs of SmolLM2 on the CPU (default 50)")
    parser.add_argument("--services", type=int, default=5, help="paced services side by side (default 5)")
    parser.add_argument("--minutes", type=float, default=120, help="begin no round after so many (default 120)")
    parser.add_argument("--json", type=Path, required=True, help="append rows to this file; those in it count")
    return parser.parse_args()


def _all(site: BoxSite, ledger: Ledger, given: argparse.Namespace) -> None:
    kubectl, operator = site.kubectl.within(NAMESPACE), Operator(site)
    kubectl.run("create", "namespace", NAMESPACE)
    over = threading.Event()
    clock = threading.Timer(given.minutes * 60, over.set)
    clock.daemon = True
    clock.start()
    try:
        for engines, wanted, services in ((Engines.REAL, given.real, 1), (Engines.PACED, given.paced, given.services)):
            subjects = [Swinging(kubectl, operator, engines, f"{engines}-{number}") for number in range(services)]
            with ThreadPoolExecutor(services) as pool:
                swings = [
                    pool.submit(_swing, subject, ledger, wanted, over, number * _APART_S)
                    for number, subject in enumerate(subjects)
                ]
            for swing in swings:
                swing.result()
    except BaseException:
        diagnosis.dump(kubectl, state_folder() / "scale-downs-failed")
        raise
    finally:
        clock.cancel()


def _swing(subject: Swinging, ledger: Ledger, wanted: int, over: threading.Event, after_s: float) -> None:
    """Rounds of one service until nothing is missing, or it is over for all."""
    over.wait(after_s)
    if not missing(ledger.rounds, subject.engines, wanted):
        return
    try:
        subject.begin()
        number = 0
        while missing(ledger.rounds, subject.engines, wanted) and not over.is_set():
            ledger.add(subject.round(number))
            number += 1
        subject.end()
    except BaseException:
        over.set()
        raise


if __name__ == "__main__":
    raise SystemExit(main())
