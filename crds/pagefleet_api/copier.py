"""The copier: a Python that starts in any image, also in one of nothing but files, and copies a folder of it.

The operator says in a pod how it is started; the fetcher, from an image of ours, lays it into a volume before. It
brings its own dynamic loader and libraries, so nothing of the other image runs.
"""

from typing import NamedTuple

HOME = "/pagefleet-copier"
"""Where its volume is mounted; no image of a model has a folder of this name."""
INTO = "/pagefleet-models"
"""Where the model's volume is mounted beside it."""


class Layout(NamedTuple):
    """The files of a copier in a folder `home`."""

    home: str = HOME

    @property
    def loader(self) -> str:
        """The dynamic loader, the one program that the kernel starts."""
        return f"{self.home}/loader"

    @property
    def libraries(self) -> str:
        """The shared libraries that Python is linked with."""
        return f"{self.home}/shared"

    @property
    def python(self) -> str:
        """The interpreter."""
        return f"{self.home}/python3"

    @property
    def script(self) -> str:
        """What it runs."""
        return f"{self.home}/copying.py"

    @property
    def environment(self) -> dict[str, str]:
        """Where Python looks for its standard library, whatever the image says."""
        return {"PYTHONHOME": self.home, "PYTHONPATH": self.home}

    def argv(self) -> list[str]:
        """The command; what to copy (a path of the image) and into which folder follow."""
        quiet = ["-S", "-B", "-X", "utf8"]
        return [self.loader, "--library-path", self.libraries, self.python, *quiet, self.script]
