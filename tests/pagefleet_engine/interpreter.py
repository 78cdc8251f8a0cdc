"""Triton's interpreter without half of its time, in which it prepares itself again and describes the same types anew.

Before each launch, and again in each call of a device function, it looks through `triton.language` for what it has to
replace by its own. Kernels are compiled in processes of their own here, so that replacing once and for all will do.
Each intermediate value gets a type whose shape is made of objects, the same few over and over; they are kept. Each sum
and product of integers is computed a second time, in 64 bits, for an assertion that it then leaves out.

And a block's products are added up in one order for all of its rows, as on a GPU. NumPy's matrix product leaves that
to a library whose order depends on the row on some processors.
"""

import os
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy


@cache
def replace_the_language_once() -> None:
    """From now on this process's `triton.language` is the interpreter's; without the interpreter nothing happens."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    import triton.language as tl
    from triton.runtime import interpreter

    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda function: interpreter._LangPatchScope()
    builder = interpreter.interpreter_builder
    assert not builder.options.debug  # with it, overflows are asserted
    builder.options = replace(builder.options, sanitize_overflow=False)
    _add_products_in_order()
    _describe_types_once()


def _add_products_in_order() -> None:
    from triton.runtime import interpreter

    library = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        if a.data.dtype.kind != "f":  # integers have one sum, and 8-bit floats lie in integers
            return library(self, a, b, d, *options)
        products = numpy.einsum("...mk,...kn->...mn", a.data, b.data, dtype=d.data.dtype)
        return interpreter.TensorHandle(products + d.data, d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot


def _describe_types_once() -> None:
    """Types of blocks, tensors and the NumPy type of a type are made with the same results as Triton's own."""
    from triton.language import core
    from triton.runtime import interpreter

    describe, numpy_type = core.block_type.__init__, interpreter._get_np_dtype
    shapes: dict[tuple[int, ...], tuple[Any, int, str]] = {}
    numpy_types: dict[str, Any] = {}

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple(core._unwrap_if_constexpr(size) for size in shape)
        if sizes not in shapes:
            describe(self, element_ty, shape)
            shapes[sizes] = (self.shape, self.numel, str(self.shape))
        self.element_ty = element_ty
        self.shape, self.numel, text = shapes[sizes]
        self.name = f"<{text}, {element_ty}>"

    @cache
    def tensor_shape(sizes: tuple[int, ...]) -> tuple[Any, Any]:
        made = core.tuple([core.constexpr(size) for size in sizes])
        return made, core.constexpr(core.math.prod(sizes))

    def tensor(self: Any, handle: Any, kind: Any) -> None:
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        self.shape, self.numel = tensor_shape(tuple(kind.shape) if kind.is_block() else ())

    def get_np_dtype(tt_dtype: Any) -> Any:
        scalar = tt_dtype.scalar
        if scalar.name not in numpy_types:
            numpy_types[scalar.name] = numpy_type(scalar)
        return numpy_types[scalar.name]

    core.block_type.__init__ = block_type
    core.tensor.__init__ = tensor
    interpreter._get_np_dtype = get_np_dtype
