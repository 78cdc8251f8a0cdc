"""Reading over HTTP: ranges, redirects that take no credentials along, and statuses in words."""

import contextlib
import http.client
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import IO, Protocol
from urllib.parse import urlsplit

from pagefleet_api import model_uri
from pagefleet_api.download import LONGEST_WAIT_S
from pagefleet_fetch.errors import Corrupt, Denied, FetchError, Missing, Unavailable
from pagefleet_fetch.pace import within
from pagefleet_fetch.sources import Stream

_TIMEOUT_S = 30.0
"""Between two bytes."""
_HEADERS_LIMIT_S = 120.0
"""Until an answer begins, redirects included."""
_CHUNK_BYTES = 1 << 20
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_NO_SUCH_RANGE = 416
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_LIMIT_RESET = re.compile(r";\s*t=([0-9]+)")


class Headers(Protocol):
    """Of an answer, by their names in whatever case, as HTTP libraries have them."""

    def get(self, name: str, default: str, /) -> str:
        """The header's value, or `default` without it."""


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https alone; credentials go along only where the host stays the same.

    same_origin: one that leads elsewhere is Denied.
    """

    def __init__(self, *, same_origin: bool = False) -> None:
        self._same_origin = same_origin

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """The next request, or None to give up."""
        if urlsplit(newurl).scheme not in {"http", "https"}:
            return None
        elsewhere = _server(req.full_url) != _server(newurl)
        if elsewhere and self._same_origin:
            to = "://".join(urlsplit(newurl)[:2])  # what follows may be signed
            raise Denied(f"{req.full_url} leads to {to}, and no other address may be asked from here")
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None:
            following.method = req.get_method()
            if elsewhere:
                following.remove_header("Authorization")
        return following

    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302


class Web:
    """Requests to one kind of server. `way_out` says what to do about 401 and 403; `same_origin` as in `Redirects`."""

    def __init__(self, headers: Mapping[str, str], *, way_out: str, same_origin: bool = False) -> None:
        self._headers, self._way_out = dict(headers), way_out
        self._opener = urllib.request.build_opener(
            Redirects(same_origin=same_origin), urllib.request.HTTPSHandler(context=ssl.create_default_context())
        )

    def head(self, url: str) -> Mapping[str, str]:
        """The headers that a file would come with."""
        with self._open(url, {}, "HEAD") as answer:
            return dict(answer.headers.items())

    @contextlib.contextmanager
    def read(self, url: str, offset: int, etag: str | None = None) -> Iterator[Stream]:
        """The bytes from `offset` on, or all of them when the server does not do ranges.

        etag: of the file that was listed; another one there is Unavailable, as its listing is out of date.
        """
        wanted = {"Range": f"bytes={offset}-"} if offset else {}
        with self._open(url, wanted, "GET") as answer:
            found = answer.headers.get("ETag")
            if etag is not None and found is not None and found != etag:
                raise Unavailable(f"{url} changed while it was being fetched (ETag {etag} is now {found}); try again")
            yield Stream(_start(url, answer), self._chunks(url, answer))

    @contextlib.contextmanager
    def _open(self, url: str, headers: Mapping[str, str], method: str) -> Iterator[http.client.HTTPResponse]:
        own = {**self._headers, **headers, "Accept-Encoding": "identity"}
        request = urllib.request.Request(url, headers=own, method=method)
        try:
            answer = within(_HEADERS_LIMIT_S, lambda: self._opener.open(request, timeout=_TIMEOUT_S))
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(url, error) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unavailable(f"{url} cannot be reached: {_words(error)}") from error
        with answer:
            yield answer

    def _refusal(self, url: str, error: urllib.error.HTTPError) -> FetchError:
        return refusal(error.code, url, self._way_out, error.headers)

    def _chunks(self, url: str, answer: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            while chunk := answer.read1(_CHUNK_BYTES):  # what is there, as a whole megabyte may never be
                yield chunk
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{url} broke off: {_words(error)}") from error


def _server(url: str) -> str:
    """Equal where the same server is asked."""
    return model_uri.origin(url) or url


def refusal(status: int, url: str, way_out: str, headers: Headers = _NO_HEADERS) -> FetchError:
    """The error for an HTTP status."""
    if status in {401, 403}:
        return Denied(f"{url} answered HTTP {status}: {way_out}")
    if status in _BUSY:
        return Unavailable(f"{url} answered HTTP {status}", _after_s(headers))
    if status == _NO_SUCH_RANGE:
        return Corrupt(f"{url} is shorter than what came of it before")
    return Missing(f"{url} answered HTTP {status}: check the URI and the revision")


def _after_s(headers: Headers) -> float | None:
    """Seconds that a server asks for: as such, as a date, or until a limit of requests begins anew, as the hub says it.

    Sources: RFC 9110, 10.2.3; https://huggingface.co/docs/hub/rate-limits
    """
    given = headers.get("Retry-After", "").strip()
    if not given and (limit := _LIMIT_RESET.search(headers.get("RateLimit", ""))) is not None:
        given = limit.group(1)
    if given.isascii() and given.isdecimal():
        return min(float(given), LONGEST_WAIT_S)
    try:
        date = parsedate_to_datetime(given)
    except ValueError:
        return None
    left_s = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(left_s, 0.0), LONGEST_WAIT_S)


def _start(url: str, answer: http.client.HTTPResponse) -> int:
    """Where the answer's bytes begin. Source: RFC 9110, 14.4 (`Content-Range: bytes 5-9/10`).

    Raises Corrupt for a part that does not say which.
    """
    if answer.status != 206:
        return 0
    first = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    if not first.isdecimal():
        raise Corrupt(f"{url} answered with a part of the file that does not say which (no Content-Range)")
    return int(first)


def _words(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return str(reason) or type(reason).__name__
