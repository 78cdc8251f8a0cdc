"""What happens to every request and answer, whatever the endpoint: ids, kept connections, the open count."""

import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagefleet_engine.api.drain import Intake
from pagefleet_engine.api.host import EngineHost

REQUEST_ID = "x-request-id"
_ID_BYTES = 12
_ID_LIMIT_CHARS = 128


class Edge:
    """ASGI middleware for the clients' port.

    Gives each answer the client's `X-Request-Id`, or a new one; tells connections to close while the
    server drains; counts answers until their last byte is handed to the connection.
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
        self._host.open_responses += 1
        try:
            await self._app(scope, receive, send_marked)
        finally:
            self._host.open_responses -= 1
            self._host.changed()
