"""From a parsed request and its prompt tokens to what the core is asked; pure."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pagefleet_api.wording import counted
from pagefleet_engine.api.auth import Caller
from pagefleet_engine.api.choice import Choice, Vocabulary
from pagefleet_engine.api.dialect import Asked
from pagefleet_engine.api.errors import ContextTooLong, InvalidRequest
from pagefleet_engine.api.fields import shown
from pagefleet_engine.api.generation import Plan
from pagefleet_engine.api.model import TokenIds
from pagefleet_engine.api.requests import GenerationRequest
from pagefleet_engine.api.seeds import choice_seed
from pagefleet_engine.api.stop import Pattern
from pagefleet_engine.scheduler import admission
from pagefleet_engine.steps import MIN_TEMPERATURE, Sampling
from pagefleet_engine.wire import CoreReady, Submit

_DEFAULT_TEMPERATURE = 1.0
_BY_PRIORITY = "priority"


class Tokenizer(Vocabulary, Protocol):
    """What a plan needs of the model's tokenizer."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer."""
        ...


class Barred(NamedTuple):
    """Tokens that are not chosen for positions below `before`: an answer has `min_tokens` before it may end."""

    token_ids: tuple[int, ...]
    before: int


NOT_BARRED = Barred((), 0)


def check_fits(prompts: Sequence[TokenIds], asked: Asked, ready: CoreReady) -> None:
    """Raise for the first prompt that can never run here, with the numbers that bound it."""
    for tokens in prompts:
        found = admission.refusal(
            len(tokens),
            asked.answer_tokens,
            ready.max_model_len,
            ready.num_blocks,
            max_tokens_field=asked.answer_tokens_field,
        )
        if found is None:
            continue
        param = asked.prompt_field if found.param == "prompt" else found.param
        kind = InvalidRequest if found.reason == "prompt_empty" else ContextTooLong
        raise kind(found.message, param=param)


def check_priority(request: GenerationRequest, policy: str) -> None:
    """Raise `InvalidRequest` for a priority that would be as if it were not there, as vLLM's documentation has it."""
    if request.priority and policy != _BY_PRIORITY:
        raise InvalidRequest(
            f"priority is {request.priority}, but this server's order is {policy}; leave it out or send 0, or start "
            f"the server with --scheduling-policy {_BY_PRIORITY} (engine.scheduling.policy: {_BY_PRIORITY})",
            param="priority",
        )


def plan(
    request: GenerationRequest,
    asked: Asked,
    prompts: Sequence[TokenIds],
    *,
    tokenizer: Tokenizer,
    window_tokens: int,
    request_ids: Sequence[int],
    fresh_seed: Callable[[], int],
    caller: Caller,
    adapter: int | None = None,
) -> Plan:
    """One `Submit` and one `Choice` for each choice of each prompt; raises `InvalidRequest`."""
    logit_bias = _logit_bias(request, tokenizer.vocab_size)
    stop_token_ids = _stop_token_ids(request, tokenizer)
    submits: list[Submit] = []
    for tokens in prompts:
        seed = fresh_seed() if request.seed is None else request.seed
        max_tokens = _answer_tokens(asked, len(tokens), window_tokens)
        _check_min_tokens(request, asked, max_tokens)
        barred = Barred(stop_token_ids, len(tokens) + request.min_tokens) if request.min_tokens else NOT_BARRED
        for index in range(request.choices):
            submits.append(
                Submit(
                    request_id=request_ids[len(submits)],
                    prompt_token_ids=tokens,
                    max_tokens=max_tokens,
                    sampling=_sampling(request, asked, choice_seed(seed, index), logit_bias, barred),
                    stop_token_ids=stop_token_ids,
                    prompt_logprobs=asked.prompt_logprobs,
                    cache_salt=caller.cache_salt,
                    priority=request.priority or 0,
                    tenant=caller.tenant,
                    adapter=adapter,
                )
            )
    stops = [Pattern.of(stop) for stop in request.stops]
    choices = [Choice(tokenizer, stops, request.min_tokens or 0) for _ in submits]
    return Plan(submits, choices, request.choices)


def _answer_tokens(asked: Asked, prompt_tokens: int, window_tokens: int) -> int:
    if asked.answer_tokens is not None:
        return asked.answer_tokens
    room = admission.answer_room(prompt_tokens, window_tokens)
    return room if asked.default_answer_tokens is None else min(asked.default_answer_tokens, room)


def _check_min_tokens(request: GenerationRequest, asked: Asked, max_tokens: int) -> None:
    if request.min_tokens is not None and request.min_tokens > max_tokens:
        raise InvalidRequest(
            f"min_tokens is {request.min_tokens}, but the answer can have {counted(max_tokens, 'token')} at most; "
            f"lower min_tokens, or give a larger {asked.answer_tokens_field} where the window has room",
            param="min_tokens",
        )


def _sampling(
    request: GenerationRequest,
    asked: Asked,
    seed: int,
    logit_bias: tuple[tuple[int, float], ...],
    barred: Barred,
) -> Sampling:
    temperature = _DEFAULT_TEMPERATURE if request.temperature is None else request.temperature
    return Sampling(
        seed=seed,
        temperature=0.0 if temperature < MIN_TEMPERATURE else temperature,
        top_k=request.top_k if request.top_k is not None and request.top_k > 0 else None,
        top_p=1.0 if request.top_p is None else request.top_p,
        min_p=request.min_p or 0.0,
        logit_bias=logit_bias,
        barred_token_ids=barred.token_ids,
        barred_before=barred.before,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=1.0 if request.repetition_penalty is None else request.repetition_penalty,
        top_logprobs=asked.top_logprobs,
    )


def _stop_token_ids(request: GenerationRequest, tokenizer: Tokenizer) -> tuple[int, ...]:
    own = request.stop_token_ids or []
    unknown = next((token_id for token_id in own if token_id >= tokenizer.vocab_size), None)
    if unknown is not None:
        raise InvalidRequest(
            f"stop_token_ids holds {shown(unknown)}; this model's token ids are 0 to {tokenizer.vocab_size - 1}",
            param="stop_token_ids",
        )
    return tuple(dict.fromkeys((*(() if request.ignore_eos else tokenizer.eos_ids), *own)))


def _logit_bias(request: GenerationRequest, vocab_size: int) -> tuple[tuple[int, float], ...]:
    pairs: list[tuple[int, float]] = []
    for text, bias in (request.logit_bias or {}).items():
        if not _is_token_id(text, vocab_size):
            raise InvalidRequest(
                f"logit_bias has the key {shown(text)}; keys are token ids, 0 to {vocab_size - 1}", param="logit_bias"
            )
        pairs.append((int(text), bias))
    return tuple(pairs)


def _is_token_id(text: str, vocab_size: int) -> bool:
    """Whether `text` is a token id as JSON writes numbers, so that two keys are two tokens."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(vocab_size))):
        return False
    return str(int(text)) == text and int(text) < vocab_size
