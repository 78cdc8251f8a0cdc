"""Lets a CUDA build of torch load without NVIDIA's libraries (3 GB): for the box's engine image on the CPU alone.

torch's libraries name some fourteen NVIDIA libraries that the loader must find. What they would have to provide can
be read from torch itself (its undefined symbols, and the ELF version node that says whose they are), so a tiny library
is compiled for each: every function answers "no device", hence `torch.cuda.is_available()` is False. Never in a
product image. Needs gcc and readelf.
"""

import re
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from e2e.cluster.errors import BoxError

NO_DEVICE = 100  # cudaErrorNoDevice
SYSTEM = re.compile(r"^(ld-linux|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|gomp|gfortran|z|quadmath|numa|lzma)[.-])")
# callers print what these return: a number would be read as a pointer
TEXT = re.compile(r"(Error(String|Name|Msg)|StatusString|GetLastError)$")
NUMBER_ALL_THE_SAME = {"cudaGetLastError", "cudaPeekAtLastError"}
# the library of a symbol that has no version node, by the first prefix that fits
OWNERS = {
    "cudnn": "libcudnn",
    "cublasLt": "libcublasLt",
    "cublas": "libcublas",
    "cusparseLt": "libcusparseLt",
    "cusparse": "libcusparse",
    "cufft": "libcufft",
    "cusolver": "libcusolver",
    "cuFile": "libcufile",
    "nccl": "libnccl",
    "nvrtc": "libnvrtc",
    "nvshmem": "libnvshmem_host",
    "cupti": "libcupti",
    "cuda": "libcudart",
    "__cuda": "libcudart",
}


class Symbol(NamedTuple):
    """A dynamic symbol: `version` is its ELF version node ("" without one), `kind` is FUNC, OBJECT, NOTYPE …"""

    name: str
    version: str
    kind: str
    size_bytes: int
    defined: bool


class Library(NamedTuple):
    """What readelf tells about one library: symbols, needed libraries, and the library of each version node."""

    symbols: tuple[Symbol, ...]
    needed: tuple[str, ...]
    version_owners: Mapping[str, str]


class Stub(NamedTuple):
    """A library to make: its symbols, and the version node that the loader will look for (None: none)."""

    symbols: tuple[Symbol, ...]
    version: str | None


def parse_readelf(text: str) -> Library:
    """Reads the output of `readelf -d --dyn-syms -V -W`."""
    symbols, owners, owner = [], {}, ""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 8 and re.fullmatch(r"[0-9a-f]{16}", fields[1]):
            name, _, version = fields[7].partition("@")
            defined = fields[6] != "UND"
            symbols.append(Symbol(name, version.lstrip("@"), fields[3], int(fields[2], 0), defined))
        elif needs := re.search(r"Version: \d+\s+File: (\S+)", line):
            owner = needs[1]
        elif owner and (node := re.search(r"Name: (\S+)\s+Flags:", line)):
            owners[node[1]] = owner
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", text)
    return Library(tuple(symbols), tuple(needed), owners)


def plan(libraries: Mapping[str, Library]) -> dict[str, Stub]:
    """The stubs that these libraries (by file name) lack: every library they need has an entry. Pure."""
    missing = {name for library in libraries.values() for name in library.needed} - set(libraries)
    missing = {name for name in missing if not SYSTEM.match(name)}
    owners = {node: file for library in libraries.values() for node, file in library.version_owners.items()}
    everything = [symbol for library in libraries.values() for symbol in library.symbols]
    provided = {symbol.name for symbol in everything if symbol.defined}
    wanted: dict[str, dict[str, Symbol]] = {name: {} for name in missing}
    versions: dict[str, str] = {}
    for symbol in everything:
        owner = None if symbol.name in provided else _owner(symbol, owners, missing)
        if owner is not None:
            wanted[owner][symbol.name] = symbol
            if owners.get(symbol.version) == owner:
                versions[owner] = symbol.version
    return {
        name: Stub(tuple(symbols[key] for key in sorted(symbols)), versions.get(name))
        for name, symbols in sorted(wanted.items())
    }


def _owner(symbol: Symbol, owners: Mapping[str, str], missing: Collection[str]) -> str | None:
    versioned = owners.get(symbol.version)
    if versioned is not None and versioned in missing:
        return versioned
    for prefix, library in OWNERS.items():
        if symbol.name.startswith(prefix):
            return next((name for name in sorted(missing) if name.startswith(f"{library}.so")), None)
    return None


def source(stub: Stub) -> str:
    """The C source of a stub. Assembler labels keep mangled C++ names legal. Pure."""
    lines = ["int stub_is_not_empty;"]
    for number, symbol in enumerate(stub.symbols):
        label = f'__asm__("{symbol.name}")'
        if symbol.kind == "OBJECT":
            lines.append(f"char d{number}[{max(symbol.size_bytes, 8)}] {label} __attribute__((aligned(16)));")
        elif TEXT.search(symbol.name) and symbol.name not in NUMBER_ALL_THE_SAME:
            lines.append(f"const char *f{number}(void) {label};")
            lines.append(f'const char *f{number}(void) {{ return "no CUDA (stub library)"; }}')
        else:
            lines.append(f"int f{number}(void) {label}; int f{number}(void) {{ return {NO_DEVICE}; }}")
    return "\n".join(lines) + "\n"


def read_library(path: Path) -> Library:
    command = ["readelf", "-d", "--dyn-syms", "-V", "-W", str(path)]
    return parse_readelf(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def install(site_packages: Path) -> int:
    """Puts the stubs beside torch's libraries (every one of them looks there); how many were made."""
    folder = site_packages / "torch" / "lib"
    libraries = {path.name: read_library(path) for path in sorted(folder.glob("*.so*")) if not path.is_symlink()}
    stubs = plan(libraries)
    for name, stub in stubs.items():
        _compile(folder / name, stub)
    return len(stubs)


def _compile(path: Path, stub: Stub) -> None:
    code, versions = path.with_suffix(".stub.c"), path.with_suffix(".stub.map")
    code.write_text(source(stub))
    versions.write_text(f"{stub.version} {{ global: *; }};\n")
    script = [f"-Wl,--version-script={versions}"] if stub.version else []
    flags = ["-O1", "-w", "-shared", "-fPIC", "-nostdlib", "-s", f"-Wl,-soname,{path.name}", "-Wl,--hash-style=gnu"]
    command = ["gcc", *flags, *script, "-o", str(path), str(code)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise BoxError(f"the stub {path.name} does not compile:\n{result.stderr[-2000:]}")
    code.unlink()
    versions.unlink()
