"""API keys."""

import pytest

from pagefleet_engine.api.auth import Keys
from pagefleet_engine.api.errors import KeyRefused


def test_without_keys_everybody_may_ask_and_shares_one_cache() -> None:
    assert Keys(()).tenant_salt(None) == ""
    assert Keys(()).tenant_salt("Bearer anything") == ""


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic alpha", "alpha", "Bearer alph", "Bearer ключ"]
)
def test_a_missing_or_unknown_key_is_refused(header: str | None) -> None:
    with pytest.raises(KeyRefused):
        Keys(("alpha", "beta")).tenant_salt(header)


def test_each_key_has_a_salt_of_its_own_which_does_not_show_the_key() -> None:
    keys = Keys(("alpha", "ключ"))
    salts = {keys.tenant_salt("Bearer alpha"), keys.tenant_salt("bearer  ключ")}
    assert len(salts) == 2
    assert not any("alpha" in salt for salt in salts)
    assert keys.tenant_salt("Bearer alpha") == Keys(("alpha",)).tenant_salt("BEARER alpha")
