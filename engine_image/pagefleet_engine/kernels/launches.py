"""Launches that are made again with one other argument, without Triton's own way to a kernel.

Binding, specialising and looking a kernel up takes the host 20 to 40 us a launch. The layers of a model launch the same
attention kernels with the same arguments but for their KV memory: the first one's launches are kept and repeated.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Grid = tuple[int, int, int]


class Launches:
    """What was launched through `launch`, to be launched again."""

    def __init__(self) -> None:
        self._kept: list[tuple[Callable[..., None], list[Any]]] = []
        self.repeatable = True
        """Whether every launch is kept: an interpreter has no compiled kernels to keep."""

    def keep(self, compiled: Any, grid: Grid, values: Sequence[Any]) -> None:
        """A launch of `compiled` (what Triton gives back for one) with all its arguments, constants too, in order."""
        if compiled is None:
            self.repeatable = False
            return
        self._kept.append((compiled[grid], list(values)))

    def exchanging(self, value: object) -> Callable[[object], None]:
        """A function that makes all launches again with its argument in `value`'s place.

        The argument must be such that Triton would take the same kernel: a tensor of the same format and alignment.
        """
        places = [[index for index, given in enumerate(values) if given is value] for _, values in self._kept]

        def again(other: object) -> None:
            for (run, values), indices in zip(self._kept, places, strict=True):
                for index in indices:
                    values[index] = other
                run(*values)

        return again


def launch(kernel: Any, grid: Grid, arguments: Sequence[Any], named: Mapping[str, Any], kept: Launches | None) -> None:
    """Launch a kernel whose parameters are `arguments`, then constants: all of them, and options, are in `named`."""
    compiled = kernel[grid](*arguments, **named)
    if kept is not None:
        constants = kernel.arg_names[len(arguments) :]
        kept.keep(compiled, grid, [*arguments, *(named[name] for name in constants)])
