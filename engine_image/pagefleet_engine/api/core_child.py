"""The core process as this process's child: started early, watched, never left behind."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from pagefleet_api.labels import API_KEY_ENV_PREFIX
from pagefleet_api.launch import Launch
from pagefleet_engine.api import resident

CORE_MODULE = "pagefleet_engine.core_process"
_SOCKET_NAME = "core.sock"
_LEAVE_BY_ITSELF_S = 0.5
_DIE_S = 1.0
"""A killed process that is stuck in a driver stays until that lets it go; nobody can wait for that."""


class CoreChild:
    """Listens on a private socket and starts the core, which connects to it.

    The core's lifetime is tied to the *thread* that makes this object, so make it in the main thread. API
    keys stay out of the core's arguments and environment. Raises OSError with the way out where no socket can be made.
    """

    def __init__(self, launch: Launch, module: str = CORE_MODULE) -> None:
        self._folder, self.listener = _private_socket()
        path = self._folder / _SOCKET_NAME
        environment = {name: value for name, value in os.environ.items() if not name.startswith(API_KEY_ENV_PREFIX)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "--socket", str(path), *launch.argv()],
            stdin=subprocess.DEVNULL,
            env=environment,
        )

    @property
    def pid(self) -> int:
        """The core's process id."""
        return self._process.pid

    def resident_bytes(self) -> int | None:
        """What the core holds of the machine's memory now; None once it has ended."""
        return resident.resident_bytes(self.pid)

    def watch(self, ended: Callable[[int], None]) -> None:
        """Call `ended` with the exit status, from another thread, once the core has ended."""

        def wait() -> None:
            ended(self._process.wait())

        threading.Thread(target=wait, name="core-watch", daemon=True).start()

    def end(self) -> None:
        """Give the core a moment to leave after its socket has closed, then kill it; removes the socket."""
        self.listener.close()
        try:
            self._process.wait(_LEAVE_BY_ITSELF_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_DIE_S)
        shutil.rmtree(self._folder, ignore_errors=True)


def _private_socket() -> tuple[Path, socket.socket]:
    """A new folder of this user alone, and the socket that listens in it."""
    folder: Path | None = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="pagefleet-"))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(folder / _SOCKET_NAME))
        listener.listen(1)
    except OSError as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        way_out = "give a short path of a folder that can be written as TMPDIR (in Kubernetes: an emptyDir at /tmp)"
        raise OSError(f"no socket can be made in {folder or 'a temporary folder'}: {error}; {way_out}") from error
    return folder, listener
