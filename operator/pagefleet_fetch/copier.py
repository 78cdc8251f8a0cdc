"""`python -m pagefleet_fetch.copier DIR`: lays a Python that starts in any image into a folder, and what it runs.

It is the interpreter that runs this, the loader and the libraries that it is linked with, and the encodings, the one
part of the standard library that no Python starts without.
"""

import encodings
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pagefleet_api.copier import Layout
from pagefleet_fetch import copying

_ELF64, _PROGRAM_HEADERS, _INTERPRETER = b"\x7fELF\x02", 32, 3
_HEADER = struct.Struct("<II6Q")
"""A program header: type, flags, offset, two addresses, size in the file, size in memory, alignment."""
_SIZES_AT = 54
_ENCODINGS = ("__init__.py", "aliases.py", "utf_8.py")


def main(argv: Sequence[str]) -> int:
    """The exit status."""
    place(Layout(*argv))
    return 0


def place(layout: Layout) -> None:
    """Lay it into the folder, over what an earlier try has left there. Raises OSError."""
    python = Path("/proc/self/exe").resolve()
    loader = interpreter_of(python)
    Path(layout.libraries).mkdir(parents=True, exist_ok=True)
    for name, library in _libraries(loader, python):
        shutil.copyfile(library, Path(layout.libraries, name))
    for source, target in ((loader, layout.loader), (python, layout.python)):
        shutil.copyfile(source, target)
        Path(target).chmod(0o755)
    shutil.copyfile(copying.__file__, layout.script)
    Path(layout.nothing).touch()
    folder = Path(encodings.__file__).parent
    copied = Path(layout.home, folder.relative_to(sys.base_prefix))
    copied.mkdir(parents=True, exist_ok=True)
    for name in _ENCODINGS:
        shutil.copyfile(folder / name, copied / name)


def interpreter_of(program: Path) -> Path:
    """The dynamic loader that an ELF file asks for. Raises OSError where it asks for none.

    Source: the ELF-64 object file format, version 1.5.
    """
    with program.open("rb") as file:
        header = file.read(64)
        if header.startswith(_ELF64):
            (begins,) = struct.unpack_from("<Q", header, _PROGRAM_HEADERS)
            size, count = struct.unpack_from("<HH", header, _SIZES_AT)
            for number in range(count):
                file.seek(begins + number * size)
                kind, _, offset, *_, length, _, _ = _HEADER.unpack(file.read(_HEADER.size))
                if kind == _INTERPRETER:
                    file.seek(offset)
                    return Path(os.fsdecode(file.read(length).rstrip(b"\0")))
    raise OSError(f"{program} asks for no dynamic loader: the image needs a Python that is linked dynamically")


def _libraries(loader: Path, program: Path) -> Iterator[tuple[str, Path]]:
    """As the loader finds them here, by the names under which it looks for them."""
    told = subprocess.run([loader, "--list", program], capture_output=True, text=True, check=True).stdout
    for line in told.splitlines():
        name, found, where = line.strip().partition(" => ")
        if found:
            yield name, Path(where.rpartition(" (")[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
