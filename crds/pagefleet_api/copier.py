"""The copier: a Python that starts in any image, also in one of nothing but files, and copies a folder of it.

The operator says in a pod how it is started; the fetcher, from an image of ours, lays it into a volume before. It
brings its own dynamic loader and libraries, and what the other image asks of a loader or a Python is taken back, so
nothing of it runs.
"""

from typing import NamedTuple

HOME = "/pagefleet-copier"
"""Where its volume is mounted."""
INTO = "/pagefleet-models"
"""Where the model's volume is mounted beside it."""
NOTHING, PRELOADED = "nothing", "/etc/ld.so.preload"
"""An empty file of the copier's volume, and where it is mounted: the loader runs what is named there."""
_TAKEN_BACK = (
    "LD_PRELOAD", "LD_AUDIT", "GLIBC_TUNABLES", "PYTHONPLATLIBDIR", "PYTHONIOENCODING", "PYTHONWARNINGS",
    "PYTHONDEVMODE", "PYTHONINSPECT", "PYTHONSAFEPATH", "PYTHONUTF8", "PYTHONMALLOC", "PYTHONTRACEMALLOC",
)  # fmt: skip
"""What an image may set for its own programs; an empty value is none, for both."""


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
    def nothing(self) -> str:
        """An empty file."""
        return f"{self.home}/{NOTHING}"

    @property
    def environment(self) -> dict[str, str]:
        """Where Python looks for its standard library, and nothing of what the image says."""
        return dict.fromkeys(_TAKEN_BACK, "") | {"PYTHONHOME": self.home, "PYTHONPATH": self.home}

    def argv(self) -> list[str]:
        """The command; what to copy (a path of the image) and into which folder follow."""
        quiet = ["-S", "-B", "-X", "utf8"]
        return [self.loader, "--library-path", self.libraries, self.python, *quiet, self.script]
