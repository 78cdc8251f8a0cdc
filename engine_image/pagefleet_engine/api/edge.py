"""What happens to every request and answer, whatever the endpoint: ids, kept connections, the open count."""

import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagefleet_engine.api.drain import Intake
from pagefleet_engine.api.host import EngineHost
from pagefleet_engine.api.uploads import Upload

REQUEST_ID = "x-request-id"
_ID_BYTES = 12
_ID_LIMIT_CHARS = 128


class Edge:
    """ASGI middleware for the clients' port.

    Gives each answer the client's `X-Request-Id`, or a new one; tells connections to close while the
    server drains; counts answers from a whole request until the last byte is handed to the connection.
    A body that is still coming is `Uploads`' business.
    """

    def __init__(self, app: ASGIApp, host: EngineHost) -> None:
        self._app = app
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = Headers(scope=scope).get(REQUEST_ID, "")[:_ID_LIMIT_CHARS] or secrets.token_hex(_ID_BYTES)
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = request_id
                if self._host.gate.intake is not Intake.SERVE:
                    headers["connection"] = "close"
            await send(message)

        if scope["method"] != "POST" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send_marked)
            return
        await self._serve_counted(scope, receive, send_marked)

    async def _serve_counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        counted = 0

        def count() -> None:
            nonlocal counted
            counted = 1
            self._host.open_responses += 1

        upload = Upload(self._host.uploads, receive, count)
        scope["state"]["upload"] = upload
        try:
            await self._app(scope, upload.receive, send)
        finally:
            upload.release()
            self._host.open_responses -= counted
            self._host.changed()
