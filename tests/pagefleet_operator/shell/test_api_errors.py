"""What is made of an answer that is none."""

import json

from pagefleet_operator.apiserver.api_errors import Refused, answer_error


def test_what_a_user_gave_is_not_repeated_at_length() -> None:
    said = f"failed to create it: {'x' * 100_000}: failed to create typed patch object: {'y' * 100_000}: must be short"
    error = answer_error(500, json.dumps({"message": said}).encode(), "PATCH")
    assert isinstance(error, Refused), "its words are in the middle"
    assert len(str(error)) == 4_000
    assert str(error).startswith("failed to create it: xxx") and str(error).endswith("yyy: must be short")
