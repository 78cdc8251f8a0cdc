"""A TCP proxy before the API server whose connections can die in the two ways that networks have."""

import contextlib
import json
import socket
import threading
from pathlib import Path


class Proxy:
    """Forwards to `target`. `black_hole` makes every open connection silent for good, without closing it;
    `cut` closes them all and refuses new ones until `heal`."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._silent: set[socket.socket] = set()
        self._is_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def kubeconfig(self, source: Path, folder: Path) -> Path:
        """`source` with this proxy as the server."""
        document = json.loads(source.read_text())
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.port}"
        target = folder / "proxied"
        target.write_text(json.dumps(document))
        return target

    def black_hole(self) -> int:
        """Nothing passes through today's connections any more; how many there are."""
        ends = {end for pair in self._pairs for end in pair if end.fileno() >= 0}
        self._silent |= ends
        return len(ends) // 2

    def cut(self) -> None:
        """All connections end, and new ones do too."""
        self._is_cut = True
        for pair in self._pairs:
            _close(*pair)
        self._pairs = []

    def heal(self) -> None:
        """New connections work again."""
        self._is_cut = False

    def close(self) -> None:
        """Stop."""
        self.cut()
        _close(self._listener)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut:
                _close(near)
                continue
            try:
                far = socket.create_connection(self._target, timeout=5)
            except OSError:
                _close(near)
                continue
            far.settimeout(None)
            self._pairs.append((near, far))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source not in self._silent:
                    sink.sendall(data)
        if source not in self._silent:
            _close(source, sink)


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
