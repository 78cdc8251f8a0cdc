"""Numbers as people read them."""

import pytest

from pagefleet_api.wording import counted, percent


@pytest.mark.parametrize(("number", "words"), [(0, "0 pods"), (1, "1 pod"), (2, "2 pods")])
def test_one_thing_is_no_several(number: int, words: str) -> None:
    assert counted(number, "pod") == words


@pytest.mark.parametrize(("share", "decimals", "words"), [(0.75, 0, "75 %"), (3.3, 0, "330 %"), (0.0123, 1, "1.2 %")])
def test_a_share_is_told_in_per_cent(share: float, decimals: int, words: str) -> None:
    assert percent(share, decimals) == words
