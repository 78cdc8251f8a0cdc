"""Compiles what launchers launch for real cards, on a machine that has none.

Run as a program with TRITON_INTERPRET=0: launches are recorded instead of done, compiled for each capability,
and reported as JSON lines.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

CAPABILITIES = (80, 90)
_POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bool: "*i1",
}


class Launch(NamedTuple):
    """A kernel with the arguments that it was launched with."""

    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, Any]


class Usage(NamedTuple):
    """What one thread and one block of a compiled kernel take; bytes but for the registers."""

    kernel: str
    capability: int
    registers: int
    local_bytes: int
    shared_bytes: int
    constants: dict[str, Any]


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Launches inside end up in the list, and nothing runs."""
    launches: list[Launch] = []

    def record(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        names = kernel.arg_names
        arguments = dict(zip(names, args, strict=False)) | {name: kwargs[name] for name in kwargs if name in names}
        launches.append(Launch(kernel, arguments, {name: kwargs[name] for name in kwargs if name not in names}))

    original = JITFunction.run
    JITFunction.run = record
    try:
        yield launches
    finally:
        JITFunction.run = original


def usage(launch: Launch, capability: int) -> Usage:
    """Compile `launch` as Triton would specialise it and read the compiler's report."""
    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(launch.kernel.params):
        value = launch.arguments.get(parameter.name, parameter.default)
        specialised = not getattr(parameter, "do_not_specialize", False)
        one = type(value) is int and value == 1 and specialised
        if parameter.is_constexpr or value is None or one:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        signature[parameter.name] = _kind(value)
        if specialised and (isinstance(value, torch.Tensor) or (type(value) is int and value % 16 == 0)):
            attributes[(index,)] = [["tt.divisibility", 16]]
    kind = GluonASTSource if launch.kernel.is_gluon() else ASTSource
    source = kind(launch.kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch.options)
    registers, local_bytes = _resources(compiled.asm["cubin"])
    shown = {name: value for name, value in constants.items() if isinstance(value, (int, str))}
    return Usage(launch.kernel.__name__, capability, registers, local_bytes, compiled.metadata.shared, shown)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _POINTERS[value.dtype]
    if isinstance(value, TensorDescriptor | GluonDescriptor):
        layout = f",{value.layout!r}" if isinstance(value, GluonDescriptor) else ""
        return f"tensordesc<{_POINTERS[value.base.dtype][1:]}{list(value.block_shape)}{layout}>"
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers a thread, and bytes of stack and spills a thread."""
    reader = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        report = subprocess.run([reader, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", report)
    if found is None:
        raise ValueError(f"no resource usage in {report!r}")
    return int(found[1]), int(found[2]) + int(found[3])


def report(cases: Mapping[str, Callable[[], object]], capabilities: Sequence[int] = CAPABILITIES) -> None:
    """Print one JSON line for each kernel that each case launches, on each capability."""
    for name, case in cases.items():
        with recorded() as launches:
            case()
        for launch in launches:
            for capability in capabilities:
                print(json.dumps({"case": name, **usage(launch, capability)._asdict()}), flush=True)
