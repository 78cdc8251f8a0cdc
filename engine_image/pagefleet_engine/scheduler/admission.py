"""Which requests can never run here, and why; the API process asks before it accepts, the core once more."""

from typing import NamedTuple

from pagefleet_api.sizing import BLOCK_TOKENS
from pagefleet_api.wording import counted
from pagefleet_engine.wire import Submit


class Refusal(NamedTuple):
    """Why a request cannot run: `reason` for metrics, a sentence with numbers, the parameter at fault."""

    reason: str
    message: str
    param: str


class Capacity(NamedTuple):
    """What bounds a single request: the model's window, the whole KV pool, the vocabulary."""

    max_model_len: int
    num_blocks: int
    vocab_size: int

    @property
    def window_tokens(self) -> int:
        """See `window`."""
        return window(self.max_model_len, self.num_blocks)


def window(max_model_len: int, num_blocks: int) -> int:
    """Most tokens, prompt and answer together, that one request can have: the model's or the pool's."""
    return min(max_model_len, num_blocks * BLOCK_TOKENS)


def answer_room(prompt_tokens: int, window_tokens: int) -> int:
    """Most tokens that can be generated after the prompt: `max_tokens` where a client gave none."""
    return max(window_tokens - prompt_tokens, 0)


def refusal(
    prompt_tokens: int,
    max_tokens: int | None,
    max_model_len: int,
    num_blocks: int,
    *,
    max_tokens_field: str = "max_tokens",
) -> Refusal | None:
    """Why a request of this size cannot run even alone, or None when it can.

    `max_tokens` None means as many as fit, and at least one must; 0 means that only the prompt is scored,
    so the prompt may fill the window. `max_tokens_field` is what the client calls it.
    """
    room = window(max_model_len, num_blocks)
    given = counted(prompt_tokens, "token")
    limit = f"{counted(room, 'token')} ({_bound(max_model_len, num_blocks)})"
    if prompt_tokens == 0:
        return Refusal("prompt_empty", "The prompt is empty: it must have at least one token.", "prompt")
    if prompt_tokens > room or (prompt_tokens == room and max_tokens != 0):
        return Refusal(
            "prompt_too_long",
            f"The prompt has {given}; this server's window is {limit} and must hold the answer too.",
            "prompt",
        )
    if max_tokens is not None and prompt_tokens + max_tokens > room:
        return Refusal(
            "max_tokens_too_large",
            f"The prompt has {given} and {max_tokens_field} is {max_tokens}, "
            f"{prompt_tokens + max_tokens} together; this server's window is {limit}. "
            f"At most {counted(answer_room(prompt_tokens, room), 'token')} can be generated after this prompt.",
            max_tokens_field,
        )
    return None


def problem(request: Submit, capacity: Capacity) -> str | None:
    """Why the core cannot run a request even alone, whatever the API process let in; None when it can."""
    prompt = request.prompt_token_ids
    refused = refusal(len(prompt), request.max_tokens, capacity.max_model_len, capacity.num_blocks)
    if refused is not None:
        return refused.message
    if request.max_tokens < 0:
        return f"max_tokens is {request.max_tokens}; it must not be negative."
    if min(prompt) < 0 or max(prompt) >= capacity.vocab_size:
        return f"The prompt has token ids outside 0 .. {capacity.vocab_size - 1}."
    return None


def _bound(max_model_len: int, num_blocks: int) -> str:
    pool_tokens = num_blocks * BLOCK_TOKENS
    if pool_tokens < max_model_len:
        return f"the KV cache of {counted(num_blocks, 'block')}; the model could take {max_model_len}"
    return "the model's context length"
