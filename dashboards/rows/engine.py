"""What goes on inside the engines: why steps take as long as they do, and where memory and the start's time go."""

from dashboards.expressions import LEGEND, OWNER, gauge, rate, selector
from dashboards.panels import Graph, Query, Row, Unit
from pagefleet_api.metrics import RECENT_S, Engine
from pagefleet_api.start_phase import StartPhase

_ALL_STEPS = rate(Engine.CUDA_GRAPH_STEPS, OWNER)
_WITHOUT_GRAPH = rate(Engine.CUDA_GRAPH_STEPS, OWNER, hit="false")

ENGINE = Row(
    "Inside the engine",
    (
        Graph(
            title="Prompt tokens for each decoded one",
            description=f"Tokens computed of prompts for each that was decoded, in {RECENT_S} s, mean of pods. High "
            "together with Inter-token latency: prompts crowd the steps; lower engine.maxNumBatchedTokens, or look at "
            "Prefix cache hit share.",
            unit=Unit.SHORT,
            queries=(Query(f"avg by ({OWNER}) ({selector(Engine.PREFILL_DECODE_TOKENS)})", LEGEND),),
        ),
        Graph(
            title="Steps without a CUDA graph",
            description="Share of a GPU's steps that were launched kernel by kernel. Above 0 for longer than a start: "
            "the model is one that has no graphs, they are turned off, or capturing failed; see the engine's log.",
            unit=Unit.SHARE,
            queries=(Query(f"{_WITHOUT_GRAPH} / ({_ALL_STEPS} > 0)", LEGEND),),
        ),
        Graph(
            title="Padding of CUDA graphs",
            description=f"Rows that only fill steps up to a captured size, of all rows, in {RECENT_S} s, the worst "
            "pod. Near a half for long: the pod has had no quiet moment since its start to capture further sizes in; "
            "send it less for a while.",
            unit=Unit.SHARE,
            queries=(Query(f"max by ({OWNER}) ({selector(Engine.CUDA_GRAPH_PADDING)})", LEGEND),),
        ),
        Graph(
            title="Memory of the engine",
            description="Of the fullest pod, by kind; kinds overlap. process rises without an end: the container nears "
            "its limit, raise resources.limits.memory, and report it. allocated rises: the same on the GPU.",
            unit=Unit.BYTES,
            queries=(Query(f"max by (kind) ({selector(Engine.MEMORY_BYTES)})", "{{kind}}"),),
        ),
        Graph(
            title="Phases of the start",
            description=f"Of the pod that took longest in each. {StartPhase.WEIGHTS}: a nearer or faster disk, see "
            f"model.cache. {StartPhase.PROFILE} and {StartPhase.GRAPHS}: kernels were compiled, see docs/start-up.md.",
            unit=Unit.SECONDS,
            queries=(Query(f"max by (phase) ({selector(Engine.STARTUP_PHASE)})", "{{phase}}"),),
        ),
        Graph(
            title="Pods with each adapter",
            description="Pods that have a LoRA adapter in memory, by its name. Fewer than Ready replicas: a roll-out "
            "that brings or takes it is under way, and clients that name it may meet a pod without it.",
            unit=Unit.COUNT,
            queries=(Query(gauge(Engine.LORA_ADAPTERS_INFO, "adapter"), "{{adapter}}"),),
            stepped=True,
        ),
    ),
)
