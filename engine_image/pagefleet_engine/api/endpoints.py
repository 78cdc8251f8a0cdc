"""`/v1/*`: from a request to its answer, in the order in which things can go wrong."""

import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence, Set
from contextlib import AsyncExitStack, aclosing
from typing import TypeVar, TypeVarTuple

from fastapi import Request, Response

from pagefleet_engine.api import planning, requests
from pagefleet_engine.api.answers import DONE, Model, ModelList, to_json
from pagefleet_engine.api.auth import Caller
from pagefleet_engine.api.chat import ChatDialect
from pagefleet_engine.api.choice import Choice, Delta
from pagefleet_engine.api.completions import CompletionDialect
from pagefleet_engine.api.dialect import Dialect, Heading, Whole
from pagefleet_engine.api.gate import Claim
from pagefleet_engine.api.generation import ClientGone, Direct, Generation, Progress
from pagefleet_engine.api.host import EngineHost
from pagefleet_engine.api.requests import ChatRequest, CompletionRequest, GenerationRequest
from pagefleet_engine.api.transport import (
    Chunks,
    EventStream,
    chunks_of,
    json_response,
    nobody_response,
    on_hang_up,
    read_body,
)
from pagefleet_engine.scheduler.admission import Capacity

LARGE_BODY_BYTES = 64 << 10
"""Bodies over this are parsed in a thread."""
_PACED = "paced"
_MADE_UP_WEIGHTS = "random (--load-format dummy)"
_SEED_BITS = 63
_ID_BYTES = 12

log = logging.getLogger(__name__)
_RequestT = TypeVar("_RequestT", bound=GenerationRequest)
_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


class Endpoints:
    """The OpenAI endpoints over one engine."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self._answer(request, ChatRequest, ChatDialect, "chatcmpl-")

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        return await self._answer(request, CompletionRequest, CompletionDialect, "cmpl-")

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        self._host.keys.tenant_salt(request.headers.get("authorization"))
        names = self._host.names
        return json_response(to_json(ModelList([self._model(name) for name in (names.model, *names.adapters)])))

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        self._host.keys.tenant_salt(request.headers.get("authorization"))
        name = request.path_params["name"]
        self._host.names.adapter(name)
        return json_response(to_json(self._model(name)))

    def _model(self, name: str) -> Model:
        host, device = self._host, self._host.ready.device
        weights = _MADE_UP_WEIGHTS if host.launch.load_format == "dummy" else "the model's"
        if device == _PACED:
            device, weights = "paced (computes nothing)", "none"
        parent = None if name == host.model_name else host.model_name
        return Model(name, name, host.created_at_s, self._capacity().window_tokens, device, weights, parent)

    async def _answer(
        self,
        request: Request,
        kind: type[_RequestT],
        dialect_kind: Callable[[_RequestT, Heading], Dialect],
        id_prefix: str,
    ) -> Response:
        host, arrived_at_s = self._host, self._host.clock()
        tenant_salt = host.keys.tenant_salt(request.headers.get("authorization"))
        # What a full queue refuses anyway is not worth reading.
        host.gate.admit(1).release_rest()
        try:
            parsed = await self._parse(kind, request)
            request.state.upload.release()
            adapter = host.names.adapter(parsed.model)
            planning.check_priority(parsed, host.launch.scheduling_policy)
            caller = Caller.of(tenant_salt, parsed.cache_salt, parsed.user)
            answer_id, name = id_prefix + secrets.token_hex(_ID_BYTES), parsed.model or host.model_name
            heading = Heading(answer_id, int(time.time()), name, host.model)
            dialect = dialect_kind(parsed, heading)
            claim = host.gate.admit(parsed.choices, dialect.asked.prompts)
            try:
                generation = await self._begin(dialect, claim, caller, adapter, arrived_at_s)
            except BaseException:
                claim.release_rest()
                raise
            if parsed.stream:
                return await self._stream(request, dialect, generation)
            return await self._whole(request, dialect, generation)
        except ClientGone:
            return nobody_response()

    async def _parse(self, kind: type[_RequestT], request: Request) -> _RequestT:
        host, capacity = self._host, self._capacity()
        prompts = 1 if kind is ChatRequest else host.launch.max_queued_requests + host.launch.max_num_seqs
        most_text_bytes = prompts * capacity.window_tokens * host.model.longest_token_bytes
        body = await read_body(request, requests.body_limit_bytes(most_text_bytes))
        if len(body) <= LARGE_BODY_BYTES:
            return requests.parse(kind, body, capacity)
        return await self._in_text_thread(requests.parse, kind, body, capacity)

    def _capacity(self) -> Capacity:
        ready = self._host.ready
        return Capacity(ready.max_model_len, ready.num_blocks, self._host.model.tokenizer.vocab_size)

    async def _in_text_thread(self, work: Callable[[*_Arguments], _Result], *args: *_Arguments) -> _Result:
        """Off the loop: probes and other answers go on meanwhile."""
        return await self._host.in_text_thread(work, *args)

    async def _begin(
        self, dialect: Dialect, claim: Claim, caller: Caller, adapter: int | None, arrived_at_s: float
    ) -> Generation:
        """Tokenise, off the loop where that is slow, check what can never run, hand the sequences to the core."""
        host, capacity = self._host, self._capacity()
        if dialect.prompts_are_quick:
            prompts = dialect.prompts(host.model, capacity)
        else:
            prompts = await self._in_text_thread(dialect.prompts, host.model, capacity)
        planning.check_fits(prompts, dialect.asked, host.ready)
        plan = planning.plan(
            dialect.request,
            dialect.asked,
            prompts,
            tokenizer=host.model.tokenizer,
            window_tokens=capacity.window_tokens,
            request_ids=host.core.take_ids(len(prompts) * dialect.request.choices),
            fresh_seed=lambda: secrets.randbits(_SEED_BITS),
            caller=caller,
            adapter=adapter,
        )
        claim.size([len(submit.prompt_token_ids) for submit in plan.submits])
        return Generation(host.core, host.recorder, claim, plan, clock=host.clock, arrived_at_s=arrived_at_s)

    async def _whole(self, request: Request, dialect: Dialect, generation: Generation) -> Response:
        deltas: list[list[Delta]] = [[] for _ in generation.choices]
        try:
            async with (
                on_hang_up(request.receive, lambda: generation.end(ClientGone())),
                aclosing(generation.progress()) as batches,
            ):
                async for batch in batches:
                    for progress in batch:
                        deltas[progress.choice_index].append(progress.delta)
        finally:
            generation.log_end(request.state.request_id, stream=False)
        whole = [_whole_choice(choice, found) for choice, found in zip(generation.choices, deltas, strict=True)]
        if dialect.asked.top_logprobs is None:
            return json_response(dialect.whole(whole, generation.usage()))
        return json_response(await self._in_text_thread(dialect.whole, whole, generation.usage()))

    async def _stream(self, request: Request, dialect: Dialect, generation: Generation) -> Response:
        events = self._events(request, dialect, generation)
        return EventStream(await anext(events), events)

    async def _events(self, request: Request, dialect: Dialect, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The events of a stream, those of one step together; ends with usage, if asked for, and `[DONE]`."""
        opened: set[int] = set()
        begun: Chunks | None = None
        async with AsyncExitStack() as stack:
            stack.callback(generation.log_end, request.state.request_id, stream=True)
            await stack.enter_async_context(on_hang_up(request.receive, lambda: generation.end(ClientGone())))
            batches = await stack.enter_async_context(aclosing(generation.progress()))
            async for batch in batches:
                if events := await self._encoded(batch, dialect, generation, opened):
                    yield events
                    if begun is None and (begun := chunks_of(request)) is not None:
                        generation.send_by(_direct(begun, dialect, generation, opened))
            tail = dialect.usage_event(generation.usage()) if dialect.request.include_usage else b""
            yield tail + DONE

    async def _encoded(
        self, batch: Sequence[Progress], dialect: Dialect, generation: Generation, opened: set[int]
    ) -> bytes:
        try:
            if dialect.asked.prompt_logprobs is not None and len(opened) < len(generation.choices):
                return await self._in_text_thread(_events_of, batch, dialect, generation, opened)
            return _events_of(batch, dialect, generation, opened)
        except Exception:
            generation.fail()
            raise


def _whole_choice(choice: Choice, deltas: Sequence[Delta]) -> Whole:
    text = "".join(delta.text for delta in deltas)
    return Whole(choice, text, tuple(entry for delta in deltas for entry in delta.entries))


def _events_of(batch: Sequence[Progress], dialect: Dialect, generation: Generation, opened: set[int]) -> bytes:
    events: list[bytes] = []
    usage = generation.usage() if dialect.request.usage_in_chunks else None
    for index, delta in batch:
        choice = generation.choices[index]
        if index not in opened and (choice.completion_tokens or delta.finish_reason):
            opened.add(index)
            events.append(dialect.opening(index, choice, usage) or b"")
        if delta.text or delta.entries:
            events.append(dialect.chunk(index, delta, usage))
        if delta.finish_reason is not None:
            events.append(dialect.closing(index, delta.finish_reason, usage))
    return b"".join(events)


def _direct(chunks: Chunks, dialect: Dialect, generation: Generation, opened: Set[int]) -> Direct:
    """Sends what is added to choices that were opened straight to the connection."""
    tells_usage = dialect.request.usage_in_chunks

    def send(index: int, delta: Delta) -> bool:
        if index not in opened or not chunks.open:
            return False
        if delta.text or delta.entries:
            chunks.write(dialect.chunk(index, delta, generation.usage() if tells_usage else None))
        return True

    return send
