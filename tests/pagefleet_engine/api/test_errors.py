"""The table of errors."""

import pytest

from pagefleet_engine.api import errors
from pagefleet_engine.api.answers import to_json
from pagefleet_engine.api.errors import ApiError


def kinds() -> list[type[ApiError]]:
    return ApiError.__subclasses__()


@pytest.mark.parametrize("kind", kinds())
def test_every_error_has_a_status_and_a_code_of_its_own_meaning(kind: type[ApiError]) -> None:
    error = kind("why")
    assert 400 <= errors.http_status(error) < 600
    assert errors.code(error) != "internal_error"


def test_an_error_without_a_row_is_an_internal_one() -> None:
    assert (errors.http_status(ApiError("x")), errors.code(ApiError("x"))) == (500, "internal_error")


def test_the_body_has_the_shape_that_clients_parse() -> None:
    body = to_json(errors.body(errors.InvalidRequest("n must be at least 1", param="n")))
    assert body == (
        b'{"error":{"message":"n must be at least 1","type":"invalid_request_error","param":"n",'
        b'"code":"invalid_value"}}'
    )


def test_retry_after_is_whole_seconds_and_at_least_one() -> None:
    assert errors.headers(errors.QueueFull("full", retry_after_s=0.2)) == {"retry-after": "1"}
    assert errors.headers(errors.QueueFull("full", retry_after_s=2.1)) == {"retry-after": "3"}
    assert errors.headers(errors.QueueFull("full")) == {}


def test_a_draining_server_tells_the_connection_to_close() -> None:
    assert errors.headers(errors.Draining("bye", retry_after_s=1)) == {"retry-after": "1", "connection": "close"}
    assert "www-authenticate" in errors.headers(errors.KeyRefused("no"))


def test_only_refusals_count_as_rejections() -> None:
    assert errors.rejection_reason(errors.QueueFull("full")) == "queue_full"
    assert errors.rejection_reason(errors.Cut("ended")) is None
    assert set(errors.REJECTION_REASONS) >= {"queue_full", "draining", "starting", "context_length_exceeded"}
