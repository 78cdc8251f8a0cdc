"""One run of the benchmark: which works, in which processes, and the check of the answers at the end."""

import os
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.engine import caching, facts, offline, progress, serving, stages
from bench.engine.answers import GreedyFile
from bench.engine.limits import limits_for
from bench.engine.results import Measured, Results, WorkFailed, table
from bench.engine.serving import Serving, needs_server
from bench.engine.shapes import SHAPES, write_shape
from bench.engine.stages import EAGER, NO_GRAPHS, WITH_GRAPHS, Stage
from bench.engine.texts import ids_by_text
from bench.engine.workloads import SCALES, Scale
from pagefleet_api.launch import Launch
from pagefleet_engine.core.run import itl_goal_ms
from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.source import resolve
from pagefleet_engine.runner.threads import read_count

GRAPHS_DROP, CHECK = "graphs-drop", "check"
APART = (NO_GRAPHS, EAGER, GRAPHS_DROP)
"""Works with a process, or none, of their own."""
GRAPHS = (NO_GRAPHS, GRAPHS_DROP)
"""Works that say something where decode steps are CUDA graphs."""
SUITES: dict[str, tuple[str, ...]] = {
    "offline": offline.OFFLINE,
    "static": (*offline.STATIC, WITH_GRAPHS, *APART),
    "online": serving.START_WORKS,
    "cache": (*caching.CACHE, *serving.PREFIXES),
}


def is_work(name: str) -> bool:
    """Whether a run can measure it; some works have numbers in their names."""
    return name in (*APART, *caching.CACHE) or offline.measures(name) or needs_server(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line says; no `works` means all of the suites'."""

    suites: tuple[str, ...]
    model: str
    results: Path
    works: tuple[str, ...] = ()
    device: str
    scale: str = "full"
    repeats: int | None = None
    flags: tuple[str, ...] = ()
    check: bool = True
    command: str = ""

    @property
    def chosen(self) -> tuple[str, ...]:
        """The works in the order of their suites, but for those that want graphs or the check where there is none."""
        missing = {*(() if self.device == "cuda" else GRAPHS), *(() if self.check else (EAGER, GRAPHS_DROP))}
        suites = dict.fromkeys(work for suite in self.suites for work in SUITES[suite])
        return self.works or tuple(work for work in suites if work not in missing)

    @property
    def sizes(self) -> Scale:
        """The scale by its name."""
        return SCALES[self.scale]


class Bench:
    """One model on one machine; files of the run lie in `folder`."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        """Raises the engine's ModelError for a model that is not there."""
        self._settings = settings
        shaped = settings.model in SHAPES
        uri = f"file://{write_shape(settings.model, folder)}" if shaped else settings.model
        on_gpu = settings.device == "cuda"
        said = facts.machine(has_gpu=on_gpu)
        self._launch = _launch(settings, uri)
        files = resolve(uri, weights=not shaped)
        config = read_config(files)
        self._max_positions, self._greedy = config.max_positions, GreedyFile(folder / "greedy.jsonl")
        run = {"model": settings.model, "scale": settings.scale, "run": uuid.uuid4().hex[:12]}
        run |= {"weights": "dummy" if shaped else "real", "dtype": self._launch.dtype}
        run |= {"device": self._launch.device, "flags": " ".join(settings.flags), "command": settings.command}
        self.results = Results(
            settings.results,
            {
                **run,
                **said,
                "gpus": self._launch.tensor_parallel_size if on_gpu else None,
                "threads": read_count() if self._launch.device == "cpu" else None,
                "itl_goal_ms": itl_goal_ms(self._launch, self._launch.device),
            },
            len(settings.chosen),
        )
        self._serving = Serving(
            launch=self._limited(settings.sizes.online_model_len),
            model=settings.model,
            scale=settings.sizes,
            limits=limits_for(SHAPES.get(settings.model), said["gpu"], self._launch.tensor_parallel_size),
            vocab_size=config.vocab_size,
            results=self.results,
            greedy=self._greedy,
            texts=lambda: ids_by_text(files),
            logs=folder,
        )

    def run(self) -> bool:
        """Measure everything that was chosen; False when a work failed or the answers were wrong."""
        works = self._settings.chosen
        for note in notes(self._settings, self.results.facts["load_average"], os.cpu_count() or 1):
            progress.line(note)
        if inside := [work for work in works if work not in APART and not needs_server(work)]:
            self._stage("inside_engine", inside)
        if NO_GRAPHS in works:
            self._stage("without_graphs", [NO_GRAPHS])
        self._serving.run(works)
        if self._settings.check and (EAGER in works or self._greedy.read()):
            self._stage("checking", [work for work in works if work == EAGER])
        if GRAPHS_DROP in works:
            self.results.measure(GRAPHS_DROP, self._graphs_drop)
            self._settle()
        rows = self.results.rows()
        print(table(rows), flush=True)
        return all(row["value"] is not None and row.get(CHECK, {}).get("passed", True) for row in rows)

    def _limited(self, most_tokens: int) -> Launch:
        """The launch with a window of at most so many tokens, unless the command line gave one."""
        given = self._launch.max_model_len
        return replace(self._launch, max_model_len=given or min(most_tokens, self._max_positions))

    def _stage(self, target: str, works: Sequence[str]) -> None:
        """Run a stage; what its process did not measure because it broke gets a row that says so."""
        settings = self._settings
        launch = replace(self._limited(settings.sizes.offline_model_len), prefix_cache=False)
        stage = Stage(
            launch=launch,
            model=settings.model,
            scale=settings.scale,
            works=tuple(works),
            repeats=settings.repeats,
            results=self.results,
            greedy=self._greedy,
        )
        error = stages.run(stage, target)
        if error is not None:
            told = {row["work"] for row in self.results.rows()}
            for work in [work for work in works if work not in told] or [f"{target} stage"]:
                self.results.fail(work, RuntimeError(error))

    def _settle(self) -> None:
        """Give the rows that came after the check its outcome too."""
        outcomes = [row[CHECK] for row in self.results.rows() if CHECK in row]
        if outcomes:
            self.results.settle(outcomes[0])

    def _graphs_drop(self) -> Measured:
        """Percent by which our decode step is shorter than transformers' eager one, one sequence."""
        steps = {row["work"]: row["value"] for row in self.results.rows()}
        ours, eager = steps.get(WITH_GRAPHS), steps.get(EAGER)
        if ours is None or eager is None:
            raise WorkFailed(f"it compares {WITH_GRAPHS} and {EAGER}, which this run has not measured")
        detail = {"inputs": "batch 1, same context", "graphs_ms": ours, "eager_ms": eager}
        return Measured(100 * (1 - ours / eager), "percent", None, {**detail, "plain_ms": steps.get(NO_GRAPHS)})


def notes(settings: Settings, load_average: float, cores: int) -> list[str]:
    """What to know of the figures before they come."""
    found: list[str] = []
    prompt, answer = settings.sizes.longest
    if settings.scale == "small":
        found.append(
            f"the small scale: where a work's name says more, prompts have {prompt} tokens and answers {answer}; other "
            "works are few and short (`inputs` of each row). No figure compares with the full scale's"
        )
    elif settings.device == "cpu":
        found.append("the full scale takes hours on a CPU; --scale small takes minutes")
    if settings.device == "cpu" and load_average > cores / 2:
        found.append(
            f"other work loads this machine ({load_average} on {cores} cores): times come out longer, and vary"
        )
    return found


def _launch(settings: Settings, uri: str) -> Launch:
    base = Launch(
        model=uri,
        device=settings.device,
        dtype="float32" if settings.device == "cpu" else "bfloat16",
        load_format="dummy" if settings.model in SHAPES else "auto",
        max_num_seqs=settings.sizes.seats,
    )
    return Launch.parse([*base.argv(), *settings.flags])


def run(settings: Settings) -> bool:
    """One run in a temporary folder; the servers' logs are kept beside the results, one after the other."""
    with tempfile.TemporaryDirectory(prefix="bench-engine-") as name:
        folder = Path(name)
        try:
            return Bench(settings, folder).run()
        finally:
            with settings.results.with_suffix(".servers.log").open("ab") as kept:
                for log in sorted(folder.glob("*.log")):
                    kept.write(f"== {settings.model}: {log.name}\n".encode() + log.read_bytes())
