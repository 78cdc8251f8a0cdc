"""How long clients wait."""

from dashboards.panels import Graph, Row, Unit
from dashboards.rows.quantiles import quantiles
from pagefleet_api.metrics import Engine

LATENCY = Row(
    "Latency",
    (
        Graph(
            title="Time to first token",
            description="From a request's arrival to its first token. High together with Queue time: more replicas. "
            "High alone: long prompts, see tokens/s below.",
            unit=Unit.SECONDS,
            queries=quantiles(Engine.TIME_TO_FIRST_TOKEN),
        ),
        Graph(
            title="Inter-token latency",
            description="Between two tokens of one answer. High: the batch is large (lower engine.maxNumSeqs) or long "
            "prompts share its steps (lower engine.maxNumBatchedTokens).",
            unit=Unit.SECONDS,
            queries=quantiles(Engine.INTER_TOKEN_LATENCY),
        ),
        Graph(
            title="Queue time",
            description="From arrival to a seat in the batch. Above a second for long: lower the WaitingRequests "
            "target or raise maxReplicas.",
            unit=Unit.SECONDS,
            queries=quantiles(Engine.REQUEST_QUEUE),
        ),
    ),
)
