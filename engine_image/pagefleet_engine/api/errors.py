"""Every refusal and failure that a client is told, and the one table of what each looks like on the wire.

Body: `{"error": {"message", "type", "param", "code"}}` as OpenAI clients parse it.
"""

import math
from typing import NamedTuple

import msgspec


class ApiError(Exception):
    """A request that gets no answer; `param` names the field at fault."""

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class InvalidRequest(ApiError):
    """A field is missing, out of range or not supported; the client must change the request."""


class ContextTooLong(ApiError):
    """Prompt, or prompt plus answer, is larger than the window or the KV cache."""


class KeyRefused(ApiError):
    """No API key, or none that is known here."""


class ModelUnknown(ApiError):
    """The model is not served here."""


class PathUnknown(ApiError):
    """There is nothing at this path."""


class MethodRefused(ApiError):
    """The path takes another method."""


class Conflict(ApiError):
    """The process is past the point where this could be done."""


class BodyTooLarge(ApiError):
    """The request's body is over the limit."""


class BodyStalled(ApiError):
    """The client stopped sending in the middle of the request's body."""


class HeadTooLarge(ApiError):
    """The request's line and headers are over the limit."""


class HeadStalled(ApiError):
    """The client stopped sending in the middle of the request's line and headers."""


class EncodingRefused(ApiError):
    """The request's body is compressed."""


class TooManyConnections(ApiError):
    """As many connections are open as may be; try again later or elsewhere."""


class ReadTooSlowly(ApiError):
    """The client takes its answer so slowly that the rest would have to be kept for it."""


class QueueFull(ApiError):
    """As many requests wait as may; try again later or elsewhere."""


class Starting(ApiError):
    """The model is not loaded yet."""


class Draining(ApiError):
    """The process takes no more requests; another pod does."""


class EngineFailed(ApiError):
    """The core process is gone, so nothing is accepted."""


class CoreLost(ApiError):
    """The core process died under this answer."""


class AnswerFailed(ApiError):
    """This answer broke in the engine; others may go on."""


class Cut(ApiError):
    """The process ended before the answer did."""


class _Shape(NamedTuple):
    status: int
    type: str
    code: str


_SHAPES: dict[type[ApiError], _Shape] = {
    InvalidRequest: _Shape(400, "invalid_request_error", "invalid_value"),
    ContextTooLong: _Shape(400, "invalid_request_error", "context_length_exceeded"),
    KeyRefused: _Shape(401, "authentication_error", "invalid_api_key"),
    ModelUnknown: _Shape(404, "not_found_error", "model_not_found"),
    PathUnknown: _Shape(404, "not_found_error", "unknown_url"),
    MethodRefused: _Shape(405, "invalid_request_error", "method_not_allowed"),
    Conflict: _Shape(409, "invalid_request_error", "conflict"),
    BodyStalled: _Shape(408, "invalid_request_error", "body_stalled"),
    HeadStalled: _Shape(408, "invalid_request_error", "head_stalled"),
    ReadTooSlowly: _Shape(408, "invalid_request_error", "read_too_slowly"),
    BodyTooLarge: _Shape(413, "invalid_request_error", "body_too_large"),
    HeadTooLarge: _Shape(431, "invalid_request_error", "head_too_large"),
    EncodingRefused: _Shape(415, "invalid_request_error", "unsupported_encoding"),
    QueueFull: _Shape(429, "rate_limit_error", "queue_full"),
    TooManyConnections: _Shape(503, "service_unavailable_error", "too_many_connections"),
    Starting: _Shape(503, "service_unavailable_error", "starting"),
    Draining: _Shape(503, "service_unavailable_error", "draining"),
    EngineFailed: _Shape(503, "service_unavailable_error", "engine_failed"),
    CoreLost: _Shape(503, "service_unavailable_error", "engine_failed"),
    Cut: _Shape(503, "service_unavailable_error", "shutting_down"),
    AnswerFailed: _Shape(500, "server_error", "engine_error"),
}
_UNEXPECTED = _Shape(500, "server_error", "internal_error")

_REFUSALS = (
    InvalidRequest,
    ContextTooLong,
    KeyRefused,
    ModelUnknown,
    HeadStalled,
    BodyStalled,
    HeadTooLarge,
    BodyTooLarge,
    EncodingRefused,
    QueueFull,
    TooManyConnections,
    Starting,
    Draining,
    EngineFailed,
)
"""Errors that a request for an answer can meet before it is accepted, and a connection before there is a request."""

REJECTION_REASONS = tuple(_SHAPES[error].code for error in _REFUSALS)
"""Values of the label `reason` of `rejections_total`."""


def rejection_reason(error: ApiError) -> str | None:
    """The metric label of a refusal, or None for an error of an accepted request or of a path."""
    return code(error) if isinstance(error, _REFUSALS) else None


class ErrorDetail(msgspec.Struct, frozen=True):
    """The inside of an OpenAI error body."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct, frozen=True):
    """An OpenAI error body, also the data of a stream's error event."""

    error: ErrorDetail


def _shape(error: ApiError) -> _Shape:
    return _SHAPES.get(type(error), _UNEXPECTED)


def http_status(error: ApiError) -> int:
    """The status line's number."""
    return _shape(error).status


def code(error: ApiError) -> str:
    """The machine-readable name of the error."""
    return _shape(error).code


def body(error: ApiError) -> ErrorBody:
    """What the client reads."""
    shape = _shape(error)
    return ErrorBody(ErrorDetail(message=error.message, type=shape.type, param=error.param, code=shape.code))


def headers(error: ApiError) -> dict[str, str]:
    """`Retry-After` in whole seconds where the error has one; `Connection: close` where nothing more comes."""
    result: dict[str, str] = {}
    if error.retry_after_s is not None:
        result["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, Draining | Cut | BodyStalled | BodyTooLarge | EncodingRefused | EngineFailed | CoreLost):
        result["connection"] = "close"
    if isinstance(error, KeyRefused):
        result["www-authenticate"] = "Bearer"
    return result
