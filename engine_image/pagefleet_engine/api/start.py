"""One engine from its command line to its exit status."""

import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

import setproctitle

from pagefleet_api.launch import Launch
from pagefleet_engine import logs
from pagefleet_engine.api import open_files
from pagefleet_engine.api.core_child import CORE_MODULE, CoreChild
from pagefleet_engine.api.names import served_name
from pagefleet_engine.models.adapter_files import AdapterFolder, read_adapters
from pagefleet_engine.models.errors import ModelError, ModelUnsupported
from pagefleet_engine.models.source import resolve

PROCESS_TITLE = "pagefleet-engine: api"
_BACKLOG = 2048

log = logging.getLogger(__name__)


def run(early: Sequence[signal.Signals], core_module: str | None = None) -> int:
    """Run one engine; gives the exit status: 0 after a drain, 1 when it cannot start or its core is lost.

    `early` has the signals received so far; more may come in until the server handles them.
    """
    launch = Launch.parse(sys.argv[1:], os.environ)
    setproctitle.setproctitle(PROCESS_TITLE)
    logs.configure()
    open_files.raise_limit()
    try:
        files = resolve(launch.model, weights=launch.load_format != "dummy")
        adapters = served_adapters(launch)
        ports = {"--port": launch.port, "--admin-port": launch.admin_port}
        sockets = [_listen(flag, launch.host, port) for flag, port in ports.items() if port is not None]
        core = CoreChild(launch, core_module or CORE_MODULE)
    except (ModelError, OSError) as error:
        log.error("start_failed", extra={"reason": str(error)})
        logs.say_last(str(error))
        return 1
    try:
        # Imported here, so that the core loads the model while this process imports its web server.
        from pagefleet_engine.api.server import serve

        return serve(launch, files, adapters, sockets, core, early)
    finally:
        core.end()


def served_adapters(launch: Launch) -> tuple[AdapterFolder, ...]:
    """The adapters' names and configurations, looked at before any weights are read. Raises ModelError."""
    model = served_name(launch.served_model_name, launch.model)
    if any(adapter.name == model for adapter in launch.adapters):
        raise ModelUnsupported(
            f"--adapter {model}: the model itself is served as {model!r}; give the adapter another name, or the model "
            "with --served-model-name"
        )
    return read_adapters(launch.adapters)


def leave(status: int) -> NoReturn:
    """End the process now: a thread that is tokenising a long text is not waited for."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(status)


def _listen(flag: str, host: str, port: int) -> socket.socket:
    """A listening socket; raises OSError that names the address, the flags it comes from and the way out."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        way_out = (
            f"give another {flag} (0 takes a free one) or end the process that has it"
            if error.errno == errno.EADDRINUSE
            else f"give --host an address of this machine and {flag} a port that this user may take"
        )
        raise OSError(f"{flag}: cannot listen on {host}:{port}: {error.strerror}; {way_out}") from error
    return listener
