"""Why there is no model, from the fetcher to who started it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pagefleet_api.download import LONGEST_WAIT_S, DownloadFailure

failures = st.builds(
    DownloadFailure, error=st.text(), busy=st.booleans(), after_seconds=st.none() | st.floats(0, LONGEST_WAIT_S)
)


@given(failures)
@example(DownloadFailure(error="\x85\u2028"))
def test_what_is_printed_last_is_read_back(failure: DownloadFailure) -> None:
    assert DownloadFailure.parse(f'{{"event": "fetch_failed"}}\n{failure.line()}\n') == failure


@pytest.mark.parametrize(
    "printed", ["", "\n", "Traceback", "[]", '{"folder": "/m"}', '{"error": "x", "afterSeconds": -1}']
)
def test_anything_else_is_none(printed: str) -> None:
    assert DownloadFailure.parse(printed) is None
