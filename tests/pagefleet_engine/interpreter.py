"""Triton's interpreter without the half of its time in which it prepares itself again.

Before each launch, and again in each call of a device function, it looks through `triton.language` for what it has to
replace by its own. Kernels are compiled in processes of their own here, so that replacing once and for all will do.
"""

import os
from functools import cache
from types import SimpleNamespace


@cache
def replace_the_language_once() -> None:
    """From now on this process's `triton.language` is the interpreter's; without the interpreter nothing happens."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    import triton.language as tl
    from triton.runtime import interpreter

    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda function: interpreter._LangPatchScope()
