"""Ports that tests listen on."""

import socket


def free_port() -> int:
    """One of the loopback address that nobody listened on a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
