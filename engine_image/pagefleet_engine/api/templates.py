"""Chat messages to prompt text through the model's Jinja template, in a sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pagefleet_engine.api.errors import InvalidRequest
from pagefleet_engine.api.fields import shown

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Of chat messages, as OpenAI's API has them; templates write any other one into the prompt as it is."""


class TemplateInvalid(ValueError):
    """There is no template to use: it cannot be read or compiled."""


class ChatTemplate:
    """A compiled template as Hugging Face models carry them; `render` is safe to call from any thread.

    Available to it: `messages`, `add_generation_prompt`, `bos_token`, `eos_token`, `tools` and `documents`
    (both None), `raise_exception`, `strftime_now`, the filter `tojson`, loop controls.
    """

    def __init__(self, source: str, *, bos_token: str | None = None, eos_token: str | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateInvalid(f"the chat template cannot be compiled: {error}") from error
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt; raises `InvalidRequest` with the template's own message when it refuses."""
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=True, tools=None, documents=None, **self._tokens
            )
        except jinja2.TemplateError as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error.message}", param="messages"
            ) from None
        except Exception as error:  # a template runs arbitrary expressions on what the client sent
            raise InvalidRequest(
                f"the model's chat template fails on these messages: {type(error).__name__}: {error}", param="messages"
            ) from None


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with text content; text parts are joined by line breaks, as vLLM does.

    Raises `InvalidRequest` that names the message for a role that is none of `ROLES`, content that is not text, and
    tool calls, which templates would drop in silence.
    """
    return [_plain(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _plain(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest(
            f"{where}.role must be one of {', '.join(ROLES)}, but it is {shown(role)}", param=f"{where}.role"
        )
    if message.get("tool_calls"):
        raise InvalidRequest(f"{where}.tool_calls is not supported; leave it out", param=f"{where}.tool_calls")
    return {**message, "content": _text(message.get("content"), f"{where}.content")}


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(
            f"{where} must be a string or a list of text parts, but it is {shown(content)}", param=where
        )
    return "\n".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise InvalidRequest(
        f'{where} must be {{"type": "text", "text": …}}, as the model takes text alone, but it is {shown(part)}',
        param=where,
    )


def _tojson(value: Any, indent: int | None = None) -> str:
    """Plain JSON: Jinja's own filter escapes for HTML, which models were not trained on."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
