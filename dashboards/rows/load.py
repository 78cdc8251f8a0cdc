"""How full the engines are."""

from dashboards.expressions import LEGEND, OWNER, gauge, selector
from dashboards.panels import Graph, Query, Row, Unit
from pagefleet_api.metrics import Engine

LOAD = Row(
    "Load",
    (
        Graph(
            title="Requests running",
            description="Requests with a seat in the batch. At engine.maxNumSeqs times the ready pods the seats are "
            "all taken and requests wait.",
            unit=Unit.SHORT,
            queries=(Query(gauge(Engine.REQUESTS_RUNNING, OWNER), LEGEND),),
        ),
        Graph(
            title="Requests waiting",
            description="Requests without a seat. Lasting: see Desired and ready replicas; if desired is at "
            "maxReplicas, raise it, if ready stays below desired, look at the pods.",
            unit=Unit.SHORT,
            queries=(Query(gauge(Engine.REQUESTS_WAITING, OWNER), LEGEND),),
        ),
        Graph(
            title="Requests in flight",
            description="Running and waiting together: what the way down is decided by. A scale-down starts only when "
            "fewer pods would hold this.",
            unit=Unit.SHORT,
            queries=(
                Query(f"{gauge(Engine.REQUESTS_RUNNING, OWNER)} + {gauge(Engine.REQUESTS_WAITING, OWNER)}", LEGEND),
            ),
        ),
        Graph(
            title="KV cache usage",
            description="Share of the KV blocks that requests hold, the fullest pod. Near 1 with preemptions: more "
            "replicas, a larger engine.kvCache.size or a smaller engine.maxNumSeqs.",
            unit=Unit.SHARE,
            queries=(Query(f"max by ({OWNER}) ({selector(Engine.KV_CACHE_USAGE)})", LEGEND),),
        ),
        Graph(
            title="KV cache demand",
            description="Tokens held and queued, of the capacity, mean of the pods. Above 1: the queue does not fit "
            "whatever is done with the batch, only more replicas help.",
            unit=Unit.SHARE,
            queries=(Query(f"avg by ({OWNER}) ({selector(Engine.KV_DEMAND)})", LEGEND),),
        ),
        Graph(
            title="Oldest step while there is work",
            description="Seconds since the engine's last step, the slowest pod. Growing: that engine hangs; its "
            "liveness probe restarts it, read its log of before (`kubectl logs --previous`).",
            unit=Unit.SECONDS,
            queries=(Query(f"max by ({OWNER}) ({selector(Engine.SECONDS_SINCE_LAST_STEP)})", LEGEND),),
        ),
    ),
)
