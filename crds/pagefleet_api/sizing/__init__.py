"""How much memory a model and its cache take, and what fits where.

`blocks` is what the engine allocates by; `model`, `parameters` and `weights` read a model's files, `gpu_types` has what
there is to buy, `demand` reads the resource, `fit` puts them together. The engine imports the first alone.
"""

from pagefleet_api.sizing.blocks import BLOCK_TOKENS, KvShape, blocks_for

__all__ = ["BLOCK_TOKENS", "KvShape", "blocks_for"]
