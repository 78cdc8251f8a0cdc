"""Whether the chosen services are well, in one line of numbers."""

from dashboards.expressions import gauge, led, rate
from dashboards.panels import MUST_STAY_ZERO, WORTH_A_LOOK, Color, Query, Row, Stat, Step, Unit
from pagefleet_api.load import EngineState
from pagefleet_api.metrics import Engine, Operator

_ONE_LEADER = (Step(None, Color.RED), Step(1, Color.GREEN), Step(2, Color.RED))
_FEW_ERRORS = (Step(None, Color.GREEN), Step(0.001, Color.YELLOW), Step(0.01, Color.RED))


WELL = Row(
    "Is it well?",
    (
        Stat(
            title="Ready replicas",
            description="Pods that serve, of the chosen services. Below desired for longer than a cold start: run "
            "`kubectl describe infs`; the Ready condition names the cause.",
            unit=Unit.COUNT,
            queries=(Query(f"sum ({led(Operator.READY_REPLICAS)})"),),
            width=3,
        ),
        Stat(
            title="Desired replicas",
            description="Pods that the services should have now. Not what you expect: read "
            "`status.autoscaling.lastDecision` of the service, which names each input and limit.",
            unit=Unit.COUNT,
            queries=(Query(f"sum ({led(Operator.DESIRED_REPLICAS)})"),),
            width=3,
        ),
        Stat(
            title="Draining replicas",
            description="Pods that finish their answers before they go. Stays above 0 for long: see Drain duration, "
            "and lower `drain.timeoutSeconds` only if long answers may be cut.",
            unit=Unit.COUNT,
            queries=(Query(f"sum ({led(Operator.DRAINING_REPLICAS)})"),),
            width=3,
        ),
        Stat(
            title="Error share",
            description="Accepted requests that ended in an error, of all that ended. Above 0: read the engine's log "
            "(`kubectl logs -l pagefleet.io/service=NAME`). No data: no request ended lately.",
            unit=Unit.SHARE,
            queries=(Query(f"{rate(Engine.REQUESTS, outcome='error')} / ({rate(Engine.REQUESTS)} > 0)"),),
            steps=_FEW_ERRORS,
            width=3,
        ),
        Stat(
            title="Rejections",
            description="Requests refused before any work. Look at Rejections by reason below: a full queue needs more "
            "replicas or a larger maxReplicas, the others are the clients' mistakes.",
            unit=Unit.REQUESTS_PER_SECOND,
            queries=(Query(rate(Engine.REJECTIONS)),),
            steps=WORTH_A_LOOK,
            width=3,
        ),
        Stat(
            title="Scrape errors",
            description="Pods that gave the operator no usable answer. Some while pods start or go are normal; "
            "lasting ones stop scale-downs: see the ScalingActive condition and the operator's log.",
            unit=Unit.PER_SECOND,
            queries=(Query(rate(Operator.SCRAPE_ERRORS)),),
            steps=WORTH_A_LOOK,
            width=3,
        ),
        Stat(
            title="Failed engines",
            description="Engine processes that say of themselves that they failed. Above 0: "
            "`kubectl get pods` and the log of the pod that restarts.",
            unit=Unit.COUNT,
            queries=(Query(gauge(Engine.ENGINE_STATE, state=EngineState.FAILED.value)),),
            steps=MUST_STAY_ZERO,
            width=3,
        ),
        Stat(
            title="Leader",
            description="Operators that hold the Lease: exactly 1. 0: nothing is scaled or repaired, look at the "
            "operator's pods. 2 for more than a few seconds: look at the Lease and the pods' clocks.",
            unit=Unit.COUNT,
            queries=(Query(gauge(Operator.LEADER)),),
            steps=_ONE_LEADER,
            width=3,
        ),
    ),
)
