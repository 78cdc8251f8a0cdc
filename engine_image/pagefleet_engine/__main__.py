"""`python -m pagefleet_engine`: the API process, which starts the core process."""

import signal
from types import FrameType


def main(core_module: str | None = None) -> None:
    """Run one engine and end the process with its status; see `api.start.run`."""
    early: list[signal.Signals] = []

    def remember(number: int, frame: FrameType | None) -> None:
        early.append(signal.Signals(number))

    # Before anything else is imported: the kernel drops what process 1 of a container does not handle.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, remember)
    from pagefleet_engine.api import start

    start.leave(start.run(early, core_module))


if __name__ == "__main__":
    main()
