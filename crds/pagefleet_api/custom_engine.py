"""`spec.engine.custom`: where an engine that the operator knows nothing of listens, and what it tells."""

from typing import Annotated

from pydantic import Field

from pagefleet_api import labels
from pagefleet_api.schema import Model, Shaped

Argument = Annotated[str, Field(min_length=1, max_length=4096)]
MetricName = Annotated[
    str,
    Field(max_length=200),
    Shaped(
        r"^[a-zA-Z_:][a-zA-Z0-9_:]*$", "letters, digits, _ and :, with no digit first, for example requests_waiting"
    ),
]
Path = Annotated[str, Field(max_length=200), Shaped(r"^/[^ ]*$", "a path without spaces that begins with /")]


class CustomMetrics(Model):
    """Names of the engine's own series; several of one name are added up, of kvUsage averaged."""

    running: MetricName = Field(description="Gauge of requests that are being computed.")
    waiting: MetricName = Field(description="Gauge of requests that wait for that.")
    kv_usage: MetricName | None = Field(None, description="Gauge of the KV cache's use, 0 to 1.")


class CustomEngine(Model):
    """An engine that the operator knows nothing of: where it listens and what it tells."""

    command: tuple[Argument, ...] = Field((), max_length=32, description="In place of the image's entry point.")
    port: int = Field(labels.ENGINE_PORT, ge=1, le=65_535, description="Port of its OpenAI API. Default: 8000.")
    health_path: Path = Field("/health", description="Answers 200 once it can serve. Default: /health.")
    metrics_path: Path = Field("/metrics", description="Prometheus text, on the same port. Default: /metrics.")
    metrics: CustomMetrics | None = Field(
        None, description="Without them nothing scales by load, and each drain lasts drain.timeoutSeconds."
    )

    @property
    def tells_kv(self) -> bool:
        """Whether how full its KV cache is can be known."""
        return self.metrics is not None and self.metrics.kv_usage is not None
