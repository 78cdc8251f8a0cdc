"""Says when a kernel is made that nothing had prepared: half a second and more in which nobody gets a token."""

import logging
from typing import Any

from triton import knobs

log = logging.getLogger(__name__)


def log_late_kernels() -> None:
    """From now on each kernel that this process compiles, or loads from the cache for the first time, is logged."""
    knobs.runtime.jit_post_compile_hook = _made


def _made(**made: Any) -> None:
    constants = {str(name): value for name, value in made["compile"]["constants"].items()}
    log.warning("kernel_made_late", extra={"kernel": made["fn"].name, "constants": constants})
