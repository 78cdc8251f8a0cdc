"""The processes of a run. Ctrl-C reaches all of them, and is for the first one alone, which then ends the others."""

import signal
from multiprocessing.process import BaseProcess


def start(process: BaseProcess) -> None:
    """Start a process that passes over Ctrl-C. Only in the main thread."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)
