"""What vLLM itself says of the arguments that fields become: its own parser and configuration, in its own image."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from e2e.kubectl import Kubectl
from e2e.runtimes import vllm_image
from pagefleet_api import labels
from pagefleet_api.knobs import Knob, fields
from pagefleet_api.runtimes import TRAITS, Runtime
from pagefleet_api.service import InferenceService
from pagefleet_operator.render.model import AdapterPath, ModelPlace
from pagefleet_operator.render.runtimes import engine_parts

NAMES = tuple(knob for knob in Knob if knob in TRAITS[Runtime.VLLM].knobs)
_NGRAM = {"speculative": {"method": "ngram", "tokens": 6, "lookupMax": 4, "lookupMin": 2}}
_DRAFT = {"speculative": {"method": "draft", "tokens": 3}}
_ADAPTERS = (AdapterPath("sql", "/adapters/sql"), AdapterPath("notes", "/adapters/notes"))
_SMALL = {"device": "cpu", "dtype": "bfloat16", "maxModelLen": 1024, "kvCache": {"size": "64Mi"}}

_ASK = """
import json, sys
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli.serve import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser, asked = make_arg_parser(FlexibleArgumentParser()), json.load(sys.stdin)
for argv in asked["parsed"]:
    parser.parse_args(argv)
told, found = ("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min"), []
for argv in asked["configured"]:
    args = parser.parse_args(argv)
    args.model = args.model_tag
    made = AsyncEngineArgs.from_cli_args(args).create_engine_config().speculative_config
    found.append([getattr(made, name) for name in told])
print(json.dumps(found))
"""


def argv(given: Mapping[str, Any], draft: str | None = None, adapters: Sequence[AdapterPath] = ()) -> list[str]:
    """How vLLM is started with fields of `spec.engine`, and with a model in its image that guesses, or adapters."""
    engine = {"runtime": "vllm", "image": "i", "extraArgs": ["--enforce-eager"], **given}
    beside = {} if draft is None else {"draft": {"uri": f"file://{draft}"}}
    named = [{"name": each.name, "uri": f"file://{each.path}", "rank": 64} for each in adapters]
    body = {"model": {"uri": f"file://{vllm_image.MODEL}", **beside, "adapters": named}, "engine": engine}
    service = InferenceService.parse({"metadata": {"namespace": "n", "name": "s", "uid": "u"}, "spec": body})
    place = ModelPlace(uri=service.spec.model.uri, path=vllm_image.MODEL, draft=draft, adapters=tuple(adapters))
    return list(engine_parts(service, place).args)


def guesses_as_vllm_reads_them(kubectl: Kubectl, pod: str) -> list[list[Any]]:
    """Its configurations of both ways to guess, once it has parsed every argument that a field becomes.

    Raises:
        KubectlError: it refuses one, in its own words.
    """
    configured = [argv({**_SMALL, **_NGRAM}), argv({**_SMALL, **_DRAFT}, vllm_image.MODEL)]
    parsed = [*(argv(fields(knob)) for knob in NAMES), argv(_SMALL, adapters=_ADAPTERS)]
    asked = {"parsed": parsed, "configured": configured}
    command = ("exec", "-i", pod, f"--container={labels.CONTAINER}", "--", "python3", "-c", _ASK)
    answer = kubectl.run(*command, stdin=json.dumps(asked), timeout_s=300)
    found: list[list[Any]] = json.loads(answer.splitlines()[-1])
    return found
