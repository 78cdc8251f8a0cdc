"""How much work is done."""

from dashboards.expressions import LEGEND, OWNER, rate
from dashboards.panels import Graph, Query, Row, Unit
from pagefleet_api.metrics import Engine

THROUGHPUT = Row(
    "Throughput",
    (
        Graph(
            title="Requests by outcome",
            description="Requests that ended. error: the engine's log. abort: clients hung up, often because they "
            "waited too long.",
            unit=Unit.REQUESTS_PER_SECOND,
            queries=(Query(rate(Engine.REQUESTS, "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
        Graph(
            title="Rejections by reason",
            description="Requests refused before any work. A full queue: more replicas. Any other reason: tell the "
            "client's team, the answer said what was wrong.",
            unit=Unit.REQUESTS_PER_SECOND,
            queries=(Query(rate(Engine.REJECTIONS, "reason"), "{{reason}}"),),
            stacked=True,
        ),
        Graph(
            title="Tokens",
            description="Prompt and generated tokens per second of all pods. Generated falls while requests wait: "
            "look for preemptions.",
            unit=Unit.TOKENS_PER_SECOND,
            queries=(
                Query(rate(Engine.PROMPT_TOKENS), "prompt"),
                Query(rate(Engine.GENERATION_TOKENS), "generated"),
            ),
        ),
        Graph(
            title="Prefix cache hit share",
            description="Prompt tokens that the prefix cache had already. Falls after a change of the system prompt "
            "or of the replicas; lasting: check that prompts begin with their common part.",
            unit=Unit.SHARE,
            queries=(
                Query(
                    f"{rate(Engine.PREFIX_CACHE_HITS, OWNER)} / ({rate(Engine.PREFIX_CACHE_QUERIES, OWNER)} > 0)",
                    LEGEND,
                ),
            ),
        ),
        Graph(
            title="Preemptions",
            description="Requests that gave their blocks back and were computed again. Lasting: a larger "
            "engine.kvCache.size or a smaller engine.maxNumSeqs.",
            unit=Unit.PER_SECOND,
            queries=(Query(rate(Engine.PREEMPTIONS, OWNER), LEGEND),),
        ),
        Graph(
            title="Client disconnects",
            description="Requests whose client hung up before the end. Together with a high time to first token: "
            "clients time out.",
            unit=Unit.PER_SECOND,
            queries=(Query(rate(Engine.CLIENT_DISCONNECTS, OWNER), LEGEND),),
        ),
    ),
)
