"""KEDA's calls by a real gRPC client."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from pagefleet_api import labels
from pagefleet_operator.apiserver.cache import WatchCache
from pagefleet_operator.custom_metrics import certificate
from pagefleet_operator.engines.scraper import Scraper
from pagefleet_operator.facts.observed import Sample
from pagefleet_operator.keda.serving import SERVICE, ExternalScaler, Sources
from pagefleet_operator.keda.wire import externalscaler_pb2 as pb
from pagefleet_operator.settings import Address
from tests.pagefleet_operator.autoscaling.build import load

ROOT = Path(__file__).resolve().parents[3]
TRIGGER = {"inferenceService": "s", "metric": "pagefleet_in_flight_requests", "target": "4.5"}


class Samples:
    """Stands in for the scraper."""

    def __init__(self) -> None:
        self.running: int | None = None

    def samples(self, _: Any) -> dict[str, Sample]:
        return {} if self.running is None else {"a": Sample(load(0, self.running), time.monotonic())}


class Rig:
    """A scaler that serves one service with one pod."""

    def __init__(self) -> None:
        self.samples, self.cache, self.leads = Samples(), WatchCache(), True
        meta = {"namespace": "n", "name": "s", "uid": "u", "resourceVersion": "1"}
        spec = {"model": {"uri": "pkg://m"}, "engine": {"maxNumSeqs": 8}, "autoscaling": {"mode": "External"}}
        self.cache.put(labels.KIND, {"kind": labels.KIND, "metadata": meta, "spec": spec})
        pod = {"namespace": "n", "name": "a", "uid": "a", "resourceVersion": "2"}
        marks = {labels.SERVICE: "s", labels.SERVING: labels.SERVING_TRUE}
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.cache.put("Pod", {"metadata": {**pod, "labels": marks}, "spec": {}, "status": ready})

    @contextlib.asynccontextmanager
    async def serving(self, tls: Path | None = None, trust: bytes | None = None) -> AsyncIterator[grpc.aio.Channel]:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        sources = Sources(self.cache, cast(Scraper, self.samples), lambda: self.leads)
        task = asyncio.create_task(ExternalScaler(Address("127.0.0.1", port), sources, tls).run())
        place = f"localhost:{port}"
        secure = grpc.aio.secure_channel(place, grpc.ssl_channel_credentials(trust)) if trust else None
        async with secure or grpc.aio.insecure_channel(place) as channel:
            await asyncio.wait_for(channel.channel_ready(), 5)
            yield channel
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def ref(**changed: str) -> pb.ScaledObjectRef:
    return pb.ScaledObjectRef(name="o", namespace="n", scalerMetadata={**TRIGGER, **changed})


async def ask(channel: grpc.aio.Channel, method: str, request: Any, answer: Any) -> Any:
    call = channel.unary_unary(f"/{SERVICE}/{method}", type(request).SerializeToString, answer.FromString)
    return await call(request)


async def test_the_metric_its_target_and_its_value() -> None:
    rig = Rig()
    rig.samples.running = 6
    async with rig.serving() as channel:
        (spec,) = (await ask(channel, "GetMetricSpec", ref(), pb.GetMetricSpecResponse)).metricSpecs
        assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == (TRIGGER["metric"], 5, 4.5)
        request = pb.GetMetricsRequest(scaledObjectRef=ref(), metricName=spec.metricName)
        (value,) = (await ask(channel, "GetMetrics", request, pb.GetMetricsResponse)).metricValues
        assert (value.metricName, value.metricValue, value.metricValueFloat) == (TRIGGER["metric"], 6, 6)


async def test_activation_is_pushed_soon_after_a_change() -> None:
    rig = Rig()
    rig.samples.running = 0
    async with rig.serving() as channel:
        open_stream = channel.unary_stream(
            f"/{SERVICE}/StreamIsActive", pb.ScaledObjectRef.SerializeToString, pb.IsActiveResponse.FromString
        )
        stream: Any = open_stream(ref())
        assert not (await stream.read()).result
        for running in (3, 0):
            rig.samples.running, began_s = running, time.monotonic()
            assert (await stream.read()).result == (running > 0)
            assert time.monotonic() - began_s < 3
        stream.cancel()


async def test_a_call_that_newer_kedas_make_is_said_to_be_unknown_so_that_they_do_without() -> None:
    async with Rig().serving() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await ask(channel, "StreamMetricSpec", ref(), pb.GetMetricSpecResponse)
        assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_what_is_not_known_is_an_error_and_never_inactive() -> None:
    rig = Rig()
    async with rig.serving() as channel:
        assert (await ask(channel, "IsActive", ref(), pb.IsActiveResponse)).result
        with pytest.raises(grpc.aio.AioRpcError, match="no pod that is ready tells") as refusal:
            await ask(channel, "GetMetrics", pb.GetMetricsRequest(scaledObjectRef=ref()), pb.GetMetricsResponse)
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_what_cannot_be_answered_says_which_key_is_wrong() -> None:
    rig = Rig()
    async with rig.serving() as channel:
        for changed, code, words in (
            ({"metric": "speed"}, grpc.StatusCode.INVALID_ARGUMENT, "metadata.metric: 'speed' is no metric"),
            ({"inferenceService": "t"}, grpc.StatusCode.NOT_FOUND, "metadata.inferenceService: there is no"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await ask(channel, "IsActive", ref(**changed), pb.IsActiveResponse)
            assert refusal.value.code() is code
            assert words in str(refusal.value.details())
        rig.leads = False
        with pytest.raises(grpc.aio.AioRpcError, match="does not lead"):
            await ask(channel, "IsActive", ref(), pb.IsActiveResponse)


async def test_tls_is_of_a_mounted_secret(tmp_path: Path) -> None:
    made = certificate.make("x", ("localhost",))
    (tmp_path / "tls.crt").write_bytes(made.chain)
    (tmp_path / "tls.key").write_bytes(made.key)
    async with Rig().serving(tmp_path, made.authority) as channel:
        assert (await ask(channel, "IsActive", ref(), pb.IsActiveResponse)).result


def test_the_messages_are_what_their_definition_generates(tmp_path: Path) -> None:
    folder = Path("pagefleet_operator/keda/wire")
    words = ["-I", "operator", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", *words, f"operator/{folder}/externalscaler.proto"]
    subprocess.run(command, cwd=ROOT, check=True)
    for name in ("externalscaler_pb2.py", "externalscaler_pb2.pyi"):
        assert (tmp_path / folder / name).read_text() == (ROOT / "operator" / folder / name).read_text()
