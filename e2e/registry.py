"""A registry of images on this machine, without a certificate: Debian's `docker-registry`."""

import json
import shutil
import time
from pathlib import Path

from e2e.cluster.errors import BoxError
from e2e.cluster.prepare import install_packages
from e2e.cluster.processes import Processes
from e2e.service import get_json

_NAME = "docker-registry"


class Registry:
    """One registry at `address` (host:port) with its images below `folder`, which is absolute."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        self.address = address
        self._processes = Processes(folder / "processes", folder / "log")

    @property
    def home(self) -> Path:
        """A home folder for a user who pushes to it: skopeo reads there that it has no certificate."""
        return self._folder / "home"

    def start(self, timeout_s: float = 20) -> None:
        """Start it, and install it first where it is missing.

        Raises:
            BoxError: it cannot be installed, or does not answer in time; the text ends with its log.
        """
        install_packages({_NAME: _NAME}, print)
        self._folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self._folder / "images")}},
            "http": {"addr": self.address},
        }
        config = self._folder / "config.yml"
        config.write_text(json.dumps(settings))  # JSON is YAML
        for_skopeo = self.home / ".config" / "containers" / "registries.conf"
        for_skopeo.parent.mkdir(parents=True, exist_ok=True)
        for_skopeo.write_text(f'[[registry]]\nlocation = "{self.address}"\ninsecure = true\n')
        self._processes.start(_NAME, [_NAME, "serve", str(config)])
        deadline_s = time.monotonic() + timeout_s
        while not self._answers():
            if time.monotonic() > deadline_s or not self._processes.running(_NAME):
                raise BoxError(f"the registry does not answer:\n{self._processes.log_tail(_NAME)}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop it and delete its images; without one it does nothing."""
        self._processes.kill(_NAME)
        shutil.rmtree(self._folder, ignore_errors=True)

    def repositories(self) -> list[str]:
        """The names of what was pushed."""
        found: list[str] = get_json(f"http://{self.address}/v2/_catalog")["repositories"]
        return found

    def _answers(self) -> bool:
        try:
            self.repositories()
        except OSError:
            return False
        return True
