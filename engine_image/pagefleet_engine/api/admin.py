"""The pod's own endpoints: load, health, drain, metrics."""

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from pagefleet_api.load import EngineState
from pagefleet_api.metrics import CONTENT_TYPE
from pagefleet_engine.api import exposition
from pagefleet_engine.api.drain import DrainState
from pagefleet_engine.api.errors import Conflict, Starting
from pagefleet_engine.api.host import EngineHost
from pagefleet_engine.api.transport import json_response


class AdminEndpoints:
    """Answers at once from what the API process knows; none of them asks the core or waits for its loop.

    They may run in a thread of their own: they read what others write and change only the drain's state.

    `guarded` asks for an API key where keys are configured: on the port that clients reach.
    """

    def __init__(self, host: EngineHost, *, guarded: bool) -> None:
        self._host = host
        self._guarded = guarded

    async def healthz(self, request: Request) -> Response:
        """GET /healthz: 200 while the process and its core live, also while loading."""
        ailment = self._host.ailment()
        if ailment is not None:
            return JSONResponse({"healthy": False, "reason": ailment}, 503)
        return JSONResponse({"healthy": True, "state": self._host.gate.state.value})

    async def readyz(self, request: Request) -> Response:
        """GET /readyz: 200 once the core has made a first token, until a drain begins or the core is lost or stuck."""
        state, ailment = self._host.gate.state, self._host.ailment()
        if state is EngineState.READY and ailment is None:
            return JSONResponse({"ready": True})
        told = {"ready": False, "state": state.value, "phase": self._host.phase}
        return JSONResponse(told if ailment is None else {**told, "reason": ailment}, 503)

    async def load(self, request: Request) -> Response:
        """GET /load: `pagefleet_api.load.LoadReport`; 503 until the size of the KV pool is known."""
        self._check_key(request)
        load = self._host.snapshot().load()
        if load is None:
            raise Starting("The model is not loaded yet.", retry_after_s=1)
        return json_response(load.model_dump_json(by_alias=True, exclude_none=True).encode())

    async def drain(self, request: Request) -> Response:
        """POST /drain: stop being ready, refuse new requests after a grace, finish what runs."""
        self._check_key(request)
        now_s = self._host.clock()
        self._host.gate.change_drain(lambda state: state.drain(now_s))
        return self._drain_state()

    async def undrain(self, request: Request) -> Response:
        """POST /undrain: serve again; 409 once the process was told to end."""
        self._check_key(request)
        if not self._host.gate.change_drain(DrainState.undrain):
            raise Conflict("The process was told to end and cannot serve again.")
        return self._drain_state()

    async def metrics(self, request: Request) -> Response:
        """GET /metrics: Prometheus text 0.0.4, whatever is asked for."""
        self._check_key(request)
        host = self._host
        text = exposition.render(
            host.model_name, host.snapshot(), host.recorder, vllm_names=host.launch.vllm_metric_names
        )
        return Response(text, headers={"content-type": CONTENT_TYPE})

    def _drain_state(self) -> Response:
        snapshot = self._host.snapshot()
        return JSONResponse(
            {"state": snapshot.state.value, "running": snapshot.running, "waiting": snapshot.waiting}, 202
        )

    def _check_key(self, request: Request) -> None:
        if self._guarded:
            self._host.keys.tenant_salt(request.headers.get("authorization"))
