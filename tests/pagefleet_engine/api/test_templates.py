"""Chat templates: what they get, what they may do, how they refuse."""

import re
from typing import Any

import pytest

from pagefleet_engine.api.errors import InvalidRequest
from pagefleet_engine.api.templates import ChatTemplate, TemplateInvalid, plain_messages

USER = {"role": "user", "content": "hi"}


def render(source: str, messages: list[dict[str, Any]]) -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token=None).render(plain_messages(messages))


def test_a_template_gets_messages_tokens_and_the_generation_prompt() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
        "[{{ m.role }}:{{ m['content'] }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}{{ eos_token }}"
    )
    assert render(source, [USER, USER, USER]) == "<s>[user:hi][user:hi]>"


def test_a_template_may_ask_for_the_date_and_for_plain_json() -> None:
    source = "{{ strftime_now('%Y') }}{{ messages[0] | tojson }}"
    assert re.fullmatch(r'\d{4}\{"role": "user", "content": "<é>"\}', render(source, [{**USER, "content": "<é>"}]))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('no system role here') }}", "no system role here"),
        ("{{ messages[0].content.nothing() }}", "refuses these messages"),
        ("{{ messages[9].content.x }}", "refuses these messages"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages.append(1) }}", "refuses these messages"),
        ("{{ ''.__class__.__mro__ }}", "refuses these messages"),
    ],
)
def test_what_a_template_refuses_or_may_not_do_is_the_clients_error_with_its_message(source: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        render(source, [USER])
    assert refused.value.param == "messages"


def test_a_broken_template_is_found_when_it_is_compiled() -> None:
    with pytest.raises(TemplateInvalid, match="cannot be compiled"):
        ChatTemplate("{% if %}")


def test_text_parts_are_joined_by_line_breaks() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert plain_messages([{"role": "user", "content": parts}]) == [{"role": "user", "content": "one\ntwo"}]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "x"}, "messages[0].role"),
        ({"role": 3, "content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"role": "", "content": "x"}, "messages[0].role"),
        ({"role": "User", "content": "x"}, "messages[0].role"),
        ({"role": "zzz", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": ["text"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0]"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls"),
    ],
)
def test_a_message_that_is_not_text_is_refused_by_name(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        plain_messages([message])
    assert refused.value.param == param
    assert param in refused.value.message


def test_the_roles_that_there_are_pass_and_another_is_told_them() -> None:
    said = [{"role": role, "content": "x"} for role in ("system", "developer", "user", "assistant", "tool")]
    assert plain_messages(said) == said
    with pytest.raises(InvalidRequest, match=r'one of system, developer, user, assistant, tool, .*"zzz"'):
        plain_messages([*said, {"role": "zzz", "content": "x"}])
