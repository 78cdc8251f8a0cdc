"""What the autoscaler and the drains do."""

from dashboards.expressions import LEGEND, led, rate
from dashboards.panels import Graph, Query, Row, Unit
from dashboards.rows.quantiles import quantiles
from pagefleet_api.metrics import Operator

SCALING = Row(
    "Scaling",
    (
        Graph(
            title="Desired and ready replicas",
            description="Ready follows desired after a cold start up, after a drain down. A gap that stays: the Ready "
            "condition names the cause. Sawteeth under even load: a longer behavior.scaleDown window.",
            unit=Unit.SHORT,
            queries=(
                Query(led(Operator.DESIRED_REPLICAS), f"desired {LEGEND}"),
                Query(led(Operator.READY_REPLICAS), f"ready {LEGEND}"),
                Query(led(Operator.DRAINING_REPLICAS), f"draining {LEGEND}"),
            ),
            width=16,
            stepped=True,
        ),
        Graph(
            title="Scale events",
            description="How often the wanted replicas change, by direction and cause. Each has an Event: "
            "`kubectl describe infs`. Many of both directions: a longer behavior.scaleDown window.",
            unit=Unit.PER_SECOND,
            queries=(
                Query(
                    rate(Operator.SCALE_EVENTS, "direction, driver"),
                    "{{direction}} by {{driver}}",
                ),
            ),
        ),
        Graph(
            title="Decision time",
            description="From the sample that moved the answer to the written replicas. Above 5 s: the operator is "
            "short of CPU or the API server is slow; see Reconcile time.",
            unit=Unit.SECONDS,
            queries=quantiles(Operator.DECISION),
            width=6,
        ),
        Graph(
            title="Reconcile time",
            description="One pass over one service. Above 1 s when idle: a slow API server, or too little CPU for "
            "the operator.",
            unit=Unit.SECONDS,
            queries=quantiles(Operator.RECONCILE),
            width=6,
        ),
        Graph(
            title="Drain duration",
            description="From the label flip to the pod's last answer. Near drain.timeoutSeconds: answers are about "
            "to be cut; raise it.",
            unit=Unit.SECONDS,
            queries=quantiles(Operator.DRAIN),
            width=6,
        ),
        Graph(
            title="Age of the samples",
            description="Age of the oldest sample that a decision used. Above missingMetrics.maxAgeSeconds the "
            "autoscaler holds: see Scrape errors.",
            unit=Unit.SECONDS,
            queries=(Query(led(Operator.METRICS_AGE), LEGEND),),
            width=6,
        ),
    ),
)
