"""Which name asks for which adapter, and what is said to others."""

import pytest

from pagefleet_engine.api.errors import ModelUnknown
from pagefleet_engine.api.names import ServedNames, served_name

NAMES = ServedNames("llama", ("sql", "chat"))


@pytest.mark.parametrize(("name", "adapter"), [(None, None), ("llama", None), ("sql", 0), ("chat", 1)])
def test_a_request_s_model_is_the_model_itself_or_an_adapter(name: str | None, adapter: int | None) -> None:
    assert NAMES.adapter(name) == adapter


@pytest.mark.parametrize("name", ["", "other", "SQL"])
def test_another_name_is_refused_with_those_that_are_there(name: str) -> None:
    with pytest.raises(ModelUnknown) as refused:
        NAMES.adapter(name)
    assert refused.value.message.endswith('does not exist here; this server has "llama", "sql", "chat".')


def test_a_model_without_a_name_is_called_by_its_path() -> None:
    assert (served_name(None, "file:///models/llama/"), served_name("mine", "pkg://m")) == ("llama", "mine")
