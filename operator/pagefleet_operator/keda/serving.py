"""The gRPC server: answers from the watch cache and the latest samples."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from pagefleet_api.service import InferenceService, InvalidService
from pagefleet_operator import published
from pagefleet_operator.apiserver.cache import ServiceKey, WatchCache
from pagefleet_operator.engines.scraper import Scraper
from pagefleet_operator.facts.observed import Now, Observed
from pagefleet_operator.keda import triggers
from pagefleet_operator.keda.triggers import Trigger
from pagefleet_operator.keda.wire import externalscaler_pb2 as pb
from pagefleet_operator.settings import Address

SERVICE = "externalscaler.ExternalScaler"
_PUSH_S = 0.5
_GRACE_S = 0.5
Context = Any


class Sources(NamedTuple):
    """Where answers come from."""

    cache: WatchCache
    scraper: Scraper
    leads: Callable[[], bool]


class ExternalScaler:
    """Serves while it runs. Only the leader has samples, so only it answers."""

    def __init__(self, listen: Address, sources: Sources, tls_folder: Path | None = None) -> None:
        self._listen, self._sources, self._tls_folder = listen, sources, tls_folder

    async def run(self) -> None:
        """Serve until cancelled. Raises RuntimeError when the port is taken, OSError when a TLS file cannot be read."""
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._methods()),))
        place = f"{self._listen.host or '[::]'}:{self._listen.port}"
        if self._tls_folder is None:
            server.add_insecure_port(place)
        else:
            server.add_secure_port(place, _credentials(self._tls_folder))
        await server.start()
        try:
            await server.wait_for_termination()
        finally:
            await server.stop(_GRACE_S)

    def _methods(self) -> dict[str, Any]:
        def unary(method: Any, request: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(method, request.FromString, _bytes)

        stream = grpc.unary_stream_rpc_method_handler(self._stream, pb.ScaledObjectRef.FromString, _bytes)
        return {
            "IsActive": unary(self._is_active, pb.ScaledObjectRef),
            "StreamIsActive": stream,
            "GetMetricSpec": unary(self._spec, pb.ScaledObjectRef),
            "GetMetrics": unary(self._metrics, pb.GetMetricsRequest),
        }

    async def _is_active(self, request: pb.ScaledObjectRef, context: Context) -> pb.IsActiveResponse:
        return pb.IsActiveResponse(result=await self._active(await _trigger(request, context), context))

    async def _stream(self, request: pb.ScaledObjectRef, context: Context) -> AsyncIterator[pb.IsActiveResponse]:
        """The state at once, then each change of it."""
        trigger, told = await _trigger(request, context), None
        while True:
            active = await self._active(trigger, context)
            if active != told:
                yield pb.IsActiveResponse(result=active)
            told = active
            await asyncio.sleep(_PUSH_S)

    async def _spec(self, request: pb.ScaledObjectRef, context: Context) -> pb.GetMetricSpecResponse:
        trigger = await _trigger(request, context)
        whole = max(math.ceil(trigger.target), 1)
        spec = pb.MetricSpec(metricName=trigger.metric, targetSize=whole, targetSizeFloat=trigger.target)
        return pb.GetMetricSpecResponse(metricSpecs=[spec])

    async def _metrics(self, request: pb.GetMetricsRequest, context: Context) -> pb.GetMetricsResponse:
        trigger = await _trigger(request.scaledObjectRef, context)
        value = self._value(trigger, await self._service(trigger, context))
        if value is None:
            words = f"{trigger.namespace}/{trigger.service}: no pod that is ready tells {trigger.metric} now"
            await context.abort(grpc.StatusCode.UNAVAILABLE, words)
            raise AssertionError  # abort never returns
        told = pb.MetricValue(metricName=trigger.metric, metricValue=math.ceil(value), metricValueFloat=value)
        return pb.GetMetricsResponse(metricValues=[told])

    async def _active(self, trigger: Trigger, context: Context) -> bool:
        """Above the activation; a service whose pods say nothing stays active while it has any."""
        service = await self._service(trigger, context)
        value = self._value(trigger, service)
        return service.spec.replicas > 0 if value is None else value > trigger.activation

    async def _service(self, trigger: Trigger, context: Context) -> InferenceService:
        if not self._sources.leads():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this replica does not lead, so it has no samples")
        body = self._sources.cache.service(ServiceKey(trigger.namespace, trigger.service))
        if body is None:
            words = f"metadata.inferenceService: there is no InferenceService {trigger.namespace}/{trigger.service}"
            await context.abort(grpc.StatusCode.NOT_FOUND, words)
        try:
            return InferenceService.parse(body)
        except InvalidService as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise

    def _value(self, trigger: Trigger, service: InferenceService) -> float | None:
        key, now = ServiceKey(trigger.namespace, trigger.service), Now(datetime.now(UTC), time.monotonic())
        observed = Observed(pods=self._sources.cache.pods(key), samples=self._sources.scraper.samples(key))
        return published.of_service(service, observed, now).values.get(trigger.metric)


async def _trigger(request: pb.ScaledObjectRef, context: Context) -> Trigger:
    try:
        return triggers.parse(request.namespace, dict(request.scalerMetadata))
    except triggers.BadTrigger as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _credentials(folder: Path) -> Any:
    """Of a mounted TLS Secret; with a `ca.crt` only clients that it signed are served."""
    pair = ((folder / "tls.key").read_bytes(), (folder / "tls.crt").read_bytes())
    authority = folder / "ca.crt"
    known = authority.read_bytes() if authority.exists() else None
    return grpc.ssl_server_credentials([pair], known, require_client_auth=known is not None)
