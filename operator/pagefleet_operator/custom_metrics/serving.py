"""The server: TLS, who may ask, answers from the watch cache and the latest samples, and its APIService."""

import asyncio
import base64
import logging
import ssl
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from aiohttp import web

from pagefleet_api import labels
from pagefleet_api.custom_metrics import API_SERVICE
from pagefleet_api.service import InferenceService, InvalidService
from pagefleet_operator import published
from pagefleet_operator.apiserver import cluster as api
from pagefleet_operator.apiserver.cache import ServiceKey, WatchCache
from pagefleet_operator.custom_metrics import access, certificate, wire
from pagefleet_operator.custom_metrics.access import FrontProxy
from pagefleet_operator.engines.scraper import Scraper
from pagefleet_operator.facts.observed import Body, Now, Observed
from pagefleet_operator.kinds import API_SERVICES, CONFIG_MAP
from pagefleet_operator.published import Reading
from pagefleet_operator.settings import Address, Settings

log = logging.getLogger(__name__)

_LOOK_S = 30.0
_FIRST_LOOK_S = 2.0
_CONFIG = f"ConfigMap {access.CONFIG_NAMESPACE}/{access.CONFIG_NAME}"


class Sources(NamedTuple):
    """Where answers come from."""

    cluster: api.Cluster
    cache: WatchCache
    scraper: Scraper
    leads: Callable[[], bool]


class CustomMetrics:
    """Serves while it runs. Only the leader has samples, so only it answers."""

    def __init__(self, settings: Settings, listen: Address, sources: Sources) -> None:
        self._sources, self._listen = sources, listen
        self._namespace, self._service = settings.lease_namespace, f"{settings.lease_name}-api"
        self._made = certificate.make(f"{self._service}.{self._namespace}.svc", ("localhost",))
        self._context = tls_context(self._made)
        self._proxy: FrontProxy | None = None
        self.problem: str | None = "not registered yet"
        """Why the API server does not ask here; None while it does."""
        self.refusal: str | None = None
        """The same where it does not pass by itself."""

    async def run(self) -> None:
        """Serve until cancelled. Raises OSError when the port is taken."""
        await self._look()
        while True:
            await self._serve(self._context)

    async def _serve(self, context: ssl.SSLContext) -> None:
        """Until the aggregator is known by another authority: nobody stays whom only the earlier one vouches for."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        try:
            host, port = self._listen
            await web.TCPSite(runner, host or None, port, ssl_context=context).start()
            while context is self._context:
                await asyncio.sleep(_LOOK_S if self.problem is None else _FIRST_LOOK_S)
                await self._look()
        finally:
            await runner.cleanup()

    async def _look(self) -> None:
        """Learn how the aggregator is known, and see that it trusts and finds this server."""
        refusal = None
        try:
            self._learn(await self._sources.cluster.read(CONFIG_MAP, access.CONFIG_NAMESPACE, access.CONFIG_NAME))
            problem = refusal = await self._register()
        except api.NotLeading:
            problem = "another replica leads"
        except api.Refused as error:
            problem = refusal = str(error)
        except api.ApiError as error:
            problem, refusal = str(error), self.refusal
        except (ValueError, ssl.SSLError) as error:
            problem = refusal = f"{_CONFIG} cannot be read: {error}"
        if problem != self.problem:
            event = "custom_metrics_registered" if problem is None else "custom_metrics_not_registered"
            log.log(logging.INFO if problem is None else logging.WARNING, event, extra={"problem": problem})
        self.problem, self.refusal = problem, refusal

    def _learn(self, config: Body | None) -> None:
        proxy = FrontProxy.of((config or {}).get("data") or {})
        authority, before = (None if each is None else each.authority_pem for each in (proxy, self._proxy))
        if authority != before:
            self._context = tls_context(self._made, authority)
            log.info("front_proxy_learnt", extra={"known": authority is not None})
        self._proxy = proxy

    async def _register(self) -> str | None:
        """Put our authority into the APIService that the chart made for us; why not, if not."""
        if self._proxy is None:
            return f"{_CONFIG} names no authority of an aggregator"
        live = await self._sources.cluster.read(API_SERVICES, None, API_SERVICE)
        if live is None:
            return f"APIService {API_SERVICE} is missing; the chart makes it with customMetrics.enabled"
        target = live["spec"].get("service") or {}
        if (target.get("namespace"), target.get("name")) != (self._namespace, self._service):
            owner = f"{target.get('namespace')}/{target.get('name')}" if target else "the API server itself"
            return f"APIService {API_SERVICE} belongs to {owner}, not to {self._namespace}/{self._service}: left alone"
        bundle = base64.b64encode(self._made.authority).decode()
        if live["spec"].get("caBundle") != bundle:
            await self._sources.cluster.trust(live, bundle)
        return None

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            return web.json_response(await self._document(request))
        except wire.NotServed as error:
            return web.json_response(wire.failure(error.status, str(error)), status=error.status)
        except api.ApiError as error:
            return web.json_response(wire.failure(503, str(error)), status=503)

    async def _document(self, request: web.Request) -> wire.Json:
        peer = request.get_extra_info("peercert")
        user = None if self._proxy is None else self._proxy.user(peer, request.headers)
        if user is None:
            raise wire.NotServed(401, "only the API server's aggregator is answered; ask it")
        found = wire.discovery(request.path.rstrip("/"))
        question = request.path if found is not None else wire.parse(request.path, request.query)
        if not await self._sources.cluster.allows(access.review(user, question)):
            raise wire.NotServed(403, f"{user.name} may not get {request.path}")
        if isinstance(question, wire.Question):
            return wire.values(question, self._readings(question))
        return found or {}

    def _readings(self, question: wire.Question) -> Iterable[tuple[str, Reading]]:
        if not self._sources.leads():
            raise wire.NotServed(503, "this replica does not lead, so it has no samples; try again")
        now = Now(datetime.now(UTC), time.monotonic())
        for body in self._sources.cache.services_of(question.namespace):
            if question.resource == wire.SERVICES:
                yield from self._of_service(question, body, now)
            else:
                yield from self._of_pods(question, body, now)

    def _of_service(self, question: wire.Question, body: Body, now: Now) -> Iterable[tuple[str, Reading]]:
        name, given = body["metadata"]["name"], body["metadata"].get("labels") or {}
        service = _parsed(body)
        wanted = question.of_all or question.name == name
        if wanted and service is not None and wire.selects(question.selector, given):
            yield name, published.of_service(service, self._observe(service), now)

    def _of_pods(self, question: wire.Question, body: Body, now: Now) -> Iterable[tuple[str, Reading]]:
        service = _parsed(body)
        if service is None or not wire.selects(question.selector, labels.common(service.name)):
            return
        told = published.of_pods(service, self._observe(service), now)
        yield from ((name, reading) for name, reading in told.items() if question.of_all or question.name == name)

    def _observe(self, service: InferenceService) -> Observed:
        key = ServiceKey(service.namespace, service.name)
        return Observed(pods=self._sources.cache.pods(key), samples=self._sources.scraper.samples(key))


def _parsed(body: Body) -> InferenceService | None:
    try:
        return InferenceService.parse(body)
    except InvalidService:
        return None


def tls_context(made: certificate.Serving, authority_pem: str | None = None) -> ssl.SSLContext:
    """A client may come without a certificate, and is then told that it must not; one that `authority_pem` has not
    signed ends the handshake. Raises ssl.SSLError or ValueError for an authority that is none.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_OPTIONAL
    with tempfile.NamedTemporaryFile(suffix=".pem") as pem:  # `ssl` reads keys from files alone; mode 0600
        pem.write(made.chain + made.key)
        pem.flush()
        context.load_cert_chain(pem.name)
    if authority_pem is not None:
        if not authority_pem.isascii():  # `ssl` would raise a TypeError
            raise ValueError("its authority is no certificate in PEM")
        context.load_verify_locations(cadata=authority_pem)
    return context
