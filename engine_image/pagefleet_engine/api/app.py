"""The HTTP applications: paths, and the one place where errors become answers."""

import logging

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from pagefleet_api.metrics import Engine
from pagefleet_engine.api import errors
from pagefleet_engine.api.admin import AdminEndpoints
from pagefleet_engine.api.edge import Edge
from pagefleet_engine.api.endpoints import Endpoints
from pagefleet_engine.api.errors import AnswerFailed, ApiError, InvalidRequest, MethodRefused, PathUnknown
from pagefleet_engine.api.fields import cut
from pagefleet_engine.api.host import EngineHost
from pagefleet_engine.api.transport import error_response

log = logging.getLogger(__name__)


def client_app(host: EngineHost) -> FastAPI:
    """The OpenAI endpoints, and the pod's own where no admin port is configured."""
    app = _app(host)
    endpoints = Endpoints(host)
    app.add_route("/v1/chat/completions", endpoints.chat, methods=["POST"])
    app.add_route("/v1/completions", endpoints.completions, methods=["POST"])
    app.add_route("/v1/models", endpoints.models, methods=["GET"])
    app.add_route("/v1/models/{name:path}", endpoints.model, methods=["GET"])
    if host.launch.admin_port is None:
        _add_admin(app, AdminEndpoints(host, guarded=True))
    app.add_middleware(Edge, host=host)
    return app


def admin_app(host: EngineHost) -> FastAPI:
    """The pod's own endpoints alone, for a port that no client reaches."""
    app = _app(host)
    _add_admin(app, AdminEndpoints(host, guarded=False))
    return app


def _add_admin(app: FastAPI, endpoints: AdminEndpoints) -> None:
    app.add_route("/healthz", endpoints.healthz, methods=["GET"])
    app.add_route("/readyz", endpoints.readyz, methods=["GET"])
    app.add_route("/load", endpoints.load, methods=["GET"])
    app.add_route("/metrics", endpoints.metrics, methods=["GET"])
    app.add_route("/drain", endpoints.drain, methods=["POST"])
    app.add_route("/undrain", endpoints.undrain, methods=["POST"])


def _app(host: EngineHost) -> FastAPI:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False

    async def on_api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        reason = errors.rejection_reason(error)
        if reason is not None and request.method == "POST" and request.url.path.startswith("/v1/"):
            host.recorder.count(Engine.REJECTIONS, reason)
        log.info(
            "request_refused",
            extra={
                "request": getattr(request.state, "request_id", None),
                "path": cut(request.url.path),
                "status": errors.http_status(error),
                "code": errors.code(error),
                "reason": error.message,
            },
        )
        return error_response(error)

    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_surprise)
    return app


async def _on_http_error(request: Request, error: Exception) -> Response:
    """The router's own refusals in OpenAI's shape."""
    assert isinstance(error, HTTPException)
    path, method = cut(request.url.path), request.method
    found: ApiError = InvalidRequest(str(error.detail))
    if error.status_code == 404:
        found = PathUnknown(f"There is nothing at {path}.")
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        found = MethodRefused(f"{path} does not take {method}; it takes {allowed}.")
    response = error_response(found)
    response.headers.update(error.headers or {})
    return response


async def _on_surprise(request: Request, error: Exception) -> Response:
    log.error("request_failed", extra={"path": cut(request.url.path), "error": repr(error)})
    return error_response(AnswerFailed("The server failed on this request; it is logged."))
