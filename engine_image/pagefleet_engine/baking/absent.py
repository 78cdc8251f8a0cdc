"""A GPU that is not there: Triton compiles for it, torch takes itself to have it, and nothing is ever computed."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver

from pagefleet_engine.runner.cuda import loading

NOWHERE = torch.device("meta")
"""Tensors here have shapes, formats and offsets, which is all that a kernel is chosen by, and no memory."""
_HOST = torch.device("cpu")
_CONVERSIONS = {torch.ops.aten._to_copy, torch.ops.aten.to}
_WARP_THREADS = 32
_BLOCK_THREADS = 1024
_ENDLESS_BYTES = 1 << 50


class Card(NamedTuple):
    """What kernels are compiled for and cut by; `shared_bytes` is the most that one block of threads may have."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int


@contextmanager
def standing_in(card: Card, device: torch.device = NOWHERE) -> Iterator[None]:
    """Inside, the engine finds `card`, of endless memory, as its GPU; its tensors are on `device`.

    One at a time in a process. Raises triton's OutOfResources where a kernel does not fit the card.
    """
    with ExitStack() as stack:
        stack.enter_context(_replaced(torch.cuda, _torch_cuda(card)))
        stack.enter_context(_replaced(loading, {"current_device": lambda: device}))
        stack.enter_context(knobs.runtime.scope())  # an idle engine leaves a hook behind
        stack.enter_context(_ReadAsZeros())
        before = driver._active
        stack.callback(driver.set_active, before)
        driver.set_active(_Driver(card))
        yield


@contextmanager
def _replaced(module: object, values: Mapping[str, Any]) -> Iterator[None]:
    """Inside, `module` has these functions and classes in place of its own."""
    own = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in own.items():
            setattr(module, name, value)


class _ReadAsZeros(TorchDispatchMode):  # type: ignore[misc]
    """What the host reads of tensors without memory."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        if packet is torch.ops.aten.copy_ and args[1].is_meta and not args[0].is_meta:
            return args[0].zero_()
        if packet in _CONVERSIONS and args[0].is_meta and _HOST in (*args[1:], *kwargs.values()):
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        return func(*args, **kwargs)


class _Driver(DriverBase):  # type: ignore[misc]
    """Triton's driver of the absent card."""

    def __init__(self, card: Card) -> None:
        major, minor = card.capability
        self._target = GPUTarget("cuda", 10 * major + minor, _WARP_THREADS)
        # Triton keeps what it knows of a device by its number
        self._device = 1000 * (10 * major + minor) + card.multiprocessors
        loaded = (object(), 0, 0, 0, _BLOCK_THREADS)
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": card.shared_bytes},
            load_binary=lambda *binary: loaded,
            unload_module=lambda module: None,
        )

    @classmethod
    def is_active(cls) -> bool:
        """It is never found, only set."""
        return False

    def launcher_cls(self, source: object, metadata: object) -> Any:
        """What launches a compiled kernel: nothing happens."""
        return lambda *arguments: None

    def get_current_device(self) -> int:
        """The card's number."""
        return self._device

    def get_current_stream(self, device: int) -> int:
        """The only one."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """What is compiled for."""
        return self._target

    def get_active_torch_device(self) -> torch.device:
        """Where Triton would make tensors of its own."""
        return NOWHERE

    def get_benchmarker(self) -> Any:
        """Nothing to measure."""
        raise NotImplementedError

    def map_python_to_cpp_type(self, ty: str) -> str:
        """No launcher is written in C."""
        raise NotImplementedError


class _Instant:
    """A stream, event or graph of a device that has always finished."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def replay(self) -> None: ...

    def query(self) -> bool:
        return True


def _torch_cuda(card: Card) -> dict[str, Any]:
    """Functions and classes of `torch.cuda` that the engine uses, for a card that is not there."""
    properties = SimpleNamespace(multi_processor_count=card.multiprocessors)
    return {
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_capability": lambda device=None: card.capability,
        "get_device_properties": lambda device=None: properties,
        "current_stream": lambda device=None: _Instant(),
        "Event": _Instant,
        "CUDAGraph": _Instant,
        "graph": lambda *arguments, **options: nullcontext(),
        "graph_pool_handle": lambda: None,
        "synchronize": lambda device=None: None,
        "mem_get_info": lambda device=None: (_ENDLESS_BYTES, _ENDLESS_BYTES),
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "memory_reserved": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "empty_cache": lambda: None,
    }
