"""The core process's entry point: gives the core loop its real runner.

`python -m pagefleet_engine.core_process --socket PATH <launch flags>`; the API process starts it.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence

from pagefleet_api.launch import Launch
from pagefleet_api.start_phase import StartPhase
from pagefleet_engine import logs
from pagefleet_engine.core import paced
from pagefleet_engine.core.paced import PACED
from pagefleet_engine.core.run import LoadedRunner, StartImpossible, serve_core
from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.errors import ModelError
from pagefleet_engine.models.source import resolve
from pagefleet_engine.runner import sizing, threads
from pagefleet_engine.runner.errors import LaunchImpossible


def load_runner(launch: Launch) -> LoadedRunner:
    """Import torch and load the model; raises StartImpossible for what the user can put right.

    The import is inside, since it takes seconds in which the core must already send heartbeats. A paced engine
    computes nothing and needs no torch.
    """
    if launch.device == PACED:
        return _load_paced(launch)
    started = time.perf_counter()
    # weights of many sizes would leave holes between them, which the KV cache could not use
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    threads.wait_briefly(os.environ)
    from pagefleet_engine.runner import loading

    import_s = time.perf_counter() - started
    try:
        loaded = loading.load(launch)
    except (ModelError, LaunchImpossible) as error:
        raise StartImpossible(str(error)) from error
    return loaded._replace(phase_s={StartPhase.IMPORT: import_s, **loaded.phase_s})


def _load_paced(launch: Launch) -> LoadedRunner:
    try:
        config = read_config(resolve(launch.model, weights=False))
        return paced.load(launch, sizing.window(launch, config), config.vocab_size)
    except (ModelError, LaunchImpossible) as error:
        raise StartImpossible(str(error)) from error


def main(argv: Sequence[str]) -> None:
    """Serve until the API process closes the socket. Exits with 2 for bad flags, 1 when the core fails."""
    parser = argparse.ArgumentParser(prog="pagefleet_engine.core_process", add_help=False, allow_abbrev=False)
    parser.add_argument("--socket", required=True, metavar="PATH", help="unix socket of the API process")
    own, rest = parser.parse_known_args(argv)
    logs.configure()
    serve_core(own.socket, Launch.parse(rest), load_runner)


if __name__ == "__main__":
    main(sys.argv[1:])
