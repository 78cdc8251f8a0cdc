"""Where an engine finds the draft of its model, how it is told of it, and who brings it there."""

import json
from typing import Any

from pagefleet_api.runtimes import Runtime
from pagefleet_operator import render
from pagefleet_operator.facts.mounts import claims_of
from pagefleet_operator.render.pod import warnings
from tests.pagefleet_api.test_draft import GUESSING, parsed, spec
from tests.pagefleet_operator.render.test_runtimes import flag

_CHOICES = render.Choices(replicas=1, wanted=1, image="engine:1", fetch_image="fetch:1", max_surge=1, max_unavailable=0)
_CLAIM = {"cache": {"mode": "PVC", "pvc": "models"}}


def pod(fields: dict[str, Any]) -> dict[str, Any]:
    deployment = render.manifests(parsed(fields), _CHOICES)[-1]
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return found


def args(made: dict[str, Any]) -> list[str]:
    found: list[str] = made["containers"][0]["args"]
    return found


def test_a_pod_downloads_the_draft_beside_the_model() -> None:
    made = pod(spec(Runtime.VLLM, model={"uri": "hf://org/base", "revision": "v1"}))
    model, draft = made["initContainers"]
    assert (model["name"], draft["name"]) == ("fetch-model", "fetch-draft")
    config = json.loads(flag(args(made), "--speculative-config") or "")
    path = flag(draft["args"], "--into")
    assert config == {"method": "draft_model", "model": path, "num_speculative_tokens": 3}
    assert flag(draft["args"], "--revision") == "v1"
    assert "--lora-modules" not in args(made)


def test_sglang_is_told_of_a_draft_that_guesses_in_a_row() -> None:
    told = args(pod(spec(Runtime.SGLANG, {"uri": "file:///opt/small"})))
    assert told[-10:] == [
        "--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", "/opt/small",
        "--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4",
    ]  # fmt: skip
    unsaid = args(pod(spec(Runtime.SGLANG, engine={"speculative": {"method": "draft"}})))
    assert (flag(unsaid, "--speculative-num-steps"), flag(unsaid, "--speculative-num-draft-tokens")) == ("4", "5")


def test_a_draft_on_a_claim_is_known_to_be_in_use_by_the_pods_that_read_it() -> None:
    for runtime in (Runtime.VLLM, Runtime.SGLANG):
        fields = spec(runtime, model=_CLAIM)
        assert claims_of(pod(fields)) == {"models": frozenset({parsed(fields).spec.model.sources[1].key})}
    own = pod(spec(Runtime.VLLM, {"uri": "pvc://trained/small/"}))
    assert claims_of(own)["trained"] == {"small"}


def test_a_draft_of_which_nobody_says_the_version_is_warned_of() -> None:
    fields = spec(Runtime.VLLM, {"uri": "hf://org/small"}, engine=GUESSING)
    (told,) = warnings(parsed(fields))
    assert told.startswith("spec.model.draft.revision is absent")
