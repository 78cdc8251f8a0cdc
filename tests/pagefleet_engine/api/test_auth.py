"""API keys."""

import pytest

from pagefleet_engine.api.auth import Caller, Keys, cache_salt
from pagefleet_engine.api.errors import KeyRefused


def as_header(text: str) -> str:
    """What a server reads of a header whose bytes are `text` in UTF-8."""
    return text.encode().decode("latin-1")


def test_without_keys_everybody_may_ask_and_shares_one_cache() -> None:
    assert Keys(()).tenant_salt(None) == ""
    assert Keys(()).tenant_salt("Bearer anything") == ""


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic alpha", "alpha", "Bearer alph", "Bearer \xe9"]
)
def test_a_missing_or_unknown_key_is_refused(header: str | None) -> None:
    with pytest.raises(KeyRefused):
        Keys(("alpha", "beta")).tenant_salt(header)


def test_each_key_has_a_salt_of_its_own_which_does_not_show_the_key() -> None:
    keys = Keys(("alpha", "ключ"))
    salts = {keys.tenant_salt("Bearer alpha"), keys.tenant_salt(as_header("bearer  ключ"))}
    assert len(salts) == 2
    assert not any("alpha" in salt for salt in salts)
    assert keys.tenant_salt("Bearer alpha") == Keys(("alpha",)).tenant_salt("BEARER alpha")


@pytest.mark.parametrize("key", ["ключ", "déjà", "鍵", "naïve à"])
def test_a_key_that_is_not_ascii_is_compared_by_its_bytes(key: str) -> None:
    assert Keys((key,)).tenant_salt(as_header(f"Bearer {key}"))


def test_a_key_whose_bytes_are_no_utf_8_can_be_sent_too() -> None:
    assert Keys((b"k\xff".decode("utf-8", "surrogateescape"),)).tenant_salt("Bearer k\xff")


def test_a_clients_salt_parts_its_cache_from_its_tenants_and_never_reaches_another_tenants() -> None:
    salts = [cache_salt(tenant, client) for tenant in ("", "a", "b") for client in (None, "a", "b", ":a")]
    assert len(set(salts)) == len(salts)
    assert cache_salt("a", None) == "a"
    assert cache_salt("a", "x") == cache_salt("a", "x")


def test_a_tenant_is_a_key_else_a_user_else_everybody() -> None:
    assert Caller.of("salt-of-a-key", None, "u") == Caller("salt-of-a-key", "salt-of-a-key")
    users = [Caller.of("", "s", user).tenant for user in (None, "", "u", "v", "ü" * 100_000)]
    assert users[:2] == ["", ""]
    assert len(set(users)) == 4
    assert max(map(len, users)) == 16
    assert not any("u" in user for user in users)


def test_a_key_has_one_account_whatever_salt_its_client_sends() -> None:
    first, second = (Caller.of("salt-of-a-key", salt, None) for salt in ("a", "b"))
    assert first.tenant == second.tenant
    assert first.cache_salt != second.cache_salt
