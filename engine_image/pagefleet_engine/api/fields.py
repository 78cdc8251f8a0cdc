"""Request fields that OpenAI or vLLM clients send and this engine refuses, and the values it lets pass.

A field that changes the answer and is not supported is refused by name, never dropped in silence. All
other unknown fields are ignored, as clients send extras (`metadata`, `store`, …).
"""

import json
from collections.abc import Mapping
from typing import Any

from pagefleet_engine.api.errors import InvalidRequest

_OFF: tuple[Any, ...] = (None, False)
_ZERO: tuple[Any, ...] = (None, 0)
_EMPTY: tuple[Any, ...] = (None, [], {}, "")

_COMMON: dict[str, tuple[Any, ...]] = {
    "length_penalty": (None, 1),
    "use_beam_search": _OFF,
    "include_stop_str_in_output": _OFF,
    "skip_special_tokens": (None, True),
    "spaces_between_special_tokens": (None, True),
    "prompt_logprobs": (None,),
    "truncate_prompt_tokens": (None,),
    "allowed_token_ids": _EMPTY,
    "bad_words": _EMPTY,
    "structured_outputs": _EMPTY,
    "guided_json": _EMPTY,
    "guided_regex": _EMPTY,
    "guided_choice": _EMPTY,
    "guided_grammar": _EMPTY,
    "guided_decoding_backend": (None,),
    "guided_whitespace_pattern": (None,),
    "structural_tag": _EMPTY,
    "json_schema": _EMPTY,
    "regex": _EMPTY,
    "ebnf": _EMPTY,
    "stop_regex": _EMPTY,
    "no_repeat_ngram_size": _ZERO,
    "typical_p": (None, 1),
    "logits_processors": _EMPTY,
    "return_token_ids": _OFF,
    "return_tokens_as_token_ids": _OFF,
    "detokenize": (None, True),
    "response_format": (None, {"type": "text"}),
}
CHAT: dict[str, tuple[Any, ...]] = _COMMON | {
    "tools": _EMPTY,
    "tool_choice": (None, "none", "auto"),
    "functions": _EMPTY,
    "function_call": (None, "none", "auto"),
    "reasoning_effort": (None, "none"),
    "verbosity": (None, "medium"),
    "add_special_tokens": _OFF,
    "modalities": (None, ["text"]),
    "audio": (None,),
    "web_search_options": (None,),
    "echo": _OFF,
    "add_generation_prompt": (None, True),
    "continue_final_message": _OFF,
    "chat_template": (None,),
    "chat_template_kwargs": _EMPTY,
    "documents": _EMPTY,
    "prompt": (None,),
}
COMPLETIONS: dict[str, tuple[Any, ...]] = _COMMON | {
    "suffix": _EMPTY,
    "add_special_tokens": (None, True),
    "prompt_embeds": (None,),
    "messages": (None,),
    "top_logprobs": (None,),
}
_SHOWN_CHARS = 80
_JSON = json.JSONEncoder(ensure_ascii=False)


def shown(value: Any) -> str:
    """`value` as the client wrote it, in JSON, for an error message; cut when long, and not written further."""
    begun = ""
    for piece in _JSON.iterencode(value):
        begun += piece
        if len(begun) > _SHOWN_CHARS:
            break
    return cut(begun)


def cut(text: str) -> str:
    """`text` without what would make a message or a line of the log long."""
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def refuse_unsupported(sent: Mapping[str, Any], table: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise `InvalidRequest` for the first field of `table` that was sent with another value than allowed."""
    for name, allowed in table.items():
        if name in sent and not any(_same(sent[name], value) for value in allowed):
            choices = ", ".join(map(json.dumps, allowed))
            raise InvalidRequest(
                f"{name} is not supported with the value {shown(sent[name])}; leave it out or send: {choices}",
                param=name,
            )


def _same(sent: Any, allowed: Any) -> bool:
    return bool(sent == allowed) and isinstance(sent, bool) == isinstance(allowed, bool)
