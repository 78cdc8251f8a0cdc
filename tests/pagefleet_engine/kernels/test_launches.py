"""Launches that are made again with another argument."""

import pytest

from pagefleet_engine.kernels.launches import Launches, launch

pytestmark = pytest.mark.torch


class Compiled:
    """What Triton gives back for a launch: it can be launched again with all arguments in order."""

    def __init__(self) -> None:
        self.runs: list[tuple[object, ...]] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> object:
        return lambda *values: self.runs.append((grid, *values))


class Kernel:
    """A kernel of two parameters and two constants."""

    arg_names = ("memory", "rows", "SIZE", "FLAG")

    def __init__(self, compiled: Compiled | None) -> None:
        self.compiled = compiled
        self.launched: list[tuple[object, ...]] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> object:
        def run(*arguments: object, **named: object) -> Compiled | None:
            self.launched.append((grid, arguments, named))
            return self.compiled

        return run


def test_a_launch_is_made_again_with_its_constants_and_another_memory() -> None:
    compiled, kept, memory, other = Compiled(), Launches(), object(), object()
    kernel = Kernel(compiled)
    launch(kernel, (1, 2, 3), (memory, 7), {"FLAG": True, "num_warps": 4, "SIZE": 16}, kept)
    assert kernel.launched == [((1, 2, 3), (memory, 7), {"FLAG": True, "num_warps": 4, "SIZE": 16})]
    again = kept.exchanging(memory)
    again(other)
    again(memory)
    assert kept.repeatable
    assert compiled.runs == [((1, 2, 3), other, 7, 16, True), ((1, 2, 3), memory, 7, 16, True)]


def test_what_an_interpreter_launches_cannot_be_repeated() -> None:
    kept = Launches()
    launch(Kernel(None), (1, 1, 1), (object(), 7), {"SIZE": 16, "FLAG": False}, kept)
    assert not kept.repeatable
