"""The operator's own port: `/healthz`, `/readyz`, `/metrics` and `/decisions`."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from aiohttp import web

from pagefleet_api.explanation import Explanation
from pagefleet_api.metrics import CONTENT_TYPE
from pagefleet_operator.settings import Address


class Check(NamedTuple):
    """One thing that must be well, in words."""

    name: str
    ok: bool
    detail: str


class Views(NamedTuple):
    """What the port shows; each is asked anew for every request.

    explanation: what was decided about (namespace, name); None when that service is not known here.
    leads: whether this replica acts; only then does it have one. leader: who does, None when nobody is known to.
    """

    health: Callable[[], Sequence[Check]]
    readiness: Callable[[], Sequence[Check]]
    metrics: Callable[[], bytes]
    explanation: Callable[[str, str], Explanation | None]
    leads: Callable[[], bool]
    leader: Callable[[], str | None]


def application(views: Views) -> web.Application:
    """The web application; serves nothing until it is run."""
    app = web.Application()

    async def health(_: web.Request) -> web.Response:
        return _checked(views.health())

    async def readiness(_: web.Request) -> web.Response:
        return _checked(views.readiness())

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=views.metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def decisions(request: web.Request) -> web.Response:
        return _decisions(request, views)

    app.router.add_get("/healthz", health)
    app.router.add_get("/readyz", readiness)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/decisions", decisions)
    return app


async def serve(views: Views, listen: Address) -> web.AppRunner:
    """Start listening. The caller awaits `cleanup()` of what it gets. Raises OSError when the port is taken."""
    runner = web.AppRunner(application(views), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, listen.host or None, listen.port).start()
    return runner


def _checked(checks: Sequence[Check]) -> web.Response:
    well = all(check.ok for check in checks)
    answer = {"ok": well, "checks": {check.name: {"ok": check.ok, "detail": check.detail} for check in checks}}
    return web.json_response(answer, status=200 if well else 503)


def _decisions(request: web.Request, views: Views) -> web.Response:
    namespace, name = request.query.get("namespace"), request.query.get("name")
    if not namespace or not name:
        return _error(400, "give namespace and name: /decisions?namespace=default&name=my-service")
    if not views.leads():
        leader = views.leader()
        where = "no replica leads now; try again" if leader is None else f"ask the leader, {leader}"
        return _error(503, f"this replica does not lead, so it decides nothing; {where}")
    found = views.explanation(namespace, name)
    if found is None:
        return _error(404, f"there is no InferenceService {namespace}/{name}, or it has not been looked at yet")
    return web.json_response(found.model_dump(mode="json", by_alias=True, exclude_none=True))


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)
