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
TOLD = "/dev/termination-log"
"""Where it says that it has copied. One variable of an image cannot be taken back: where LD_TRACE_LOADED_OBJECTS is
there, if only empty, the loader lists libraries and ends as if all were well."""
NOTHING, PRELOADED = "nothing", "/etc/ld.so.preload"
"""An empty file of the copier's volume, and where it is mounted: the loader runs what is named there."""
_OF_LOADER = ("GLIBC_TUNABLES", "LD_ASSUME_KERNEL", "LD_AUDIT", "LD_DEBUG", "LD_PRELOAD", "LD_PROFILE")
_OF_LOCALES = ("GCONV_PATH", "LOCPATH")
_OF_PYTHON = (
    *("PYTHONCOERCECLOCALE", "PYTHONDEVMODE", "PYTHONHASHSEED", "PYTHONINSPECT", "PYTHONINTMAXSTRDIGITS"),
    *("PYTHONIOENCODING", "PYTHONMALLOC", "PYTHONMALLOCSTATS", "PYTHONPERFSUPPORT", "PYTHONPLATLIBDIR"),
    *("PYTHONPROFILEIMPORTTIME", "PYTHONPYCACHEPREFIX", "PYTHONSAFEPATH", "PYTHONTRACEMALLOC", "PYTHONUTF8"),
    *("PYTHONVERBOSE", "PYTHONWARNINGS", "PYTHON_CONTEXT_AWARE_WARNINGS", "PYTHON_CPU_COUNT"),
    *("PYTHON_FROZEN_MODULES", "PYTHON_GIL", "PYTHON_JIT", "PYTHON_PERF_JIT_SUPPORT"),
    *("PYTHON_THREAD_INHERIT_CONTEXT", "PYTHON_TLBC"),
)
_TAKEN_BACK = (*_OF_LOADER, *_OF_LOCALES, *_OF_PYTHON)
"""What makes code of the image run, or keeps the copier from its work or its last words; an empty value is none.

Sources: `process_envvars` in glibc's elf/rtld.c (2.36 to 2.41); `python3 --help-env` (3.11 to 3.14). Python's own
switch against its variables (-E) takes PYTHONHOME with them, and then looks for its library in the image too.
"""
_LOCALE = {"LC_ALL": "C"}
"""Python reads its arguments by the locale before it knows that they are UTF-8; a named one is of files of the image,
which name programs for their character set."""


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
        return dict.fromkeys(_TAKEN_BACK, "") | _LOCALE | {"PYTHONHOME": self.home, "PYTHONPATH": self.home}

    def argv(self) -> list[str]:
        """The command; what to copy (a path of the image), into which folder, and where to say so follow."""
        quiet = ["-S", "-B", "-X", "utf8"]
        return [self.loader, "--library-path", self.libraries, self.python, *quiet, self.script]
