"""What was counted inside the shown range, to compare with a client's own counts."""

from dashboards.expressions import total
from dashboards.panels import MUST_STAY_ZERO, NEUTRAL, WORTH_A_LOOK, Query, Row, Stat, Step, Unit
from pagefleet_api.metrics import Engine, Operator

_LIMITS = (
    "Counted scrape by scrape without extrapolation, so it equals what clients counted once they have been quiet "
    "for two scrapes and one step of the query. Not seen: what a pod counts after its last scrape (drains need a "
    "scrape interval of 2 s or less, a killed container loses the rest of a step), and in ranges of more than an "
    "hour, where steps grow, more of it. A pod that ran before Prometheus first saw it brings its whole past."
)


def _total(title: str, what: str, expr: str, steps: tuple[Step, ...], width: int = 4) -> Stat:
    return Stat(
        title=title,
        description=f"{what} {_LIMITS}",
        unit=Unit.COUNT,
        queries=(Query(expr),),
        steps=steps,
        width=width,
        over_range=True,
    )


TOTALS = Row(
    "Totals over the shown range",
    (
        _total(
            "Requests",
            "Accepted requests that ended, however they ended; n answers to one prompt count as n. Compare it with "
            "what your clients counted.",
            total(Engine.REQUESTS),
            NEUTRAL,
        ),
        _total(
            "Errors",
            "Accepted requests that ended in an error. Above 0: the engine's log.",
            total(Engine.REQUESTS, outcome="error"),
            MUST_STAY_ZERO,
        ),
        _total(
            "Rejected",
            "Requests refused before any work. Above 0: Rejections by reason says why.",
            total(Engine.REJECTIONS),
            WORTH_A_LOOK,
        ),
        _total(
            "Prompt tokens",
            "Prompt tokens of accepted requests. Compare it with the sum of usage.prompt_tokens.",
            total(Engine.PROMPT_TOKENS),
            NEUTRAL,
        ),
        _total(
            "Generated tokens",
            "Tokens generated. Compare it with the sum of usage.completion_tokens.",
            total(Engine.GENERATION_TOKENS),
            NEUTRAL,
        ),
        _total(
            "Requests cut by drains",
            "Answers still running when a drain's time was up. Above 0: raise drain.timeoutSeconds.",
            total(Operator.DRAIN_ABORTED),
            MUST_STAY_ZERO,
        ),
    ),
)
