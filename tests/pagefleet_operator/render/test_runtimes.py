"""What engines that are not ours are given, and how their pods leave."""

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from pagefleet_api import labels
from pagefleet_api.runtimes import TRAITS, Runtime
from pagefleet_api.service import InferenceService
from pagefleet_operator import render
from pagefleet_operator.facts.observed import Pod
from pagefleet_operator.render.runtimes.parts import until_idle
from tests.pagefleet_api.test_runtimes import engine

_CHOICES = render.Choices(replicas=1, wanted=1, image="engine:1", fetch_image="fetch:1", max_surge=1, max_unavailable=0)
FOREIGN = [runtime for runtime in Runtime if runtime is not Runtime.PAGEFLEET]


_NOTHING: Mapping[str, Any] = MappingProxyType({})


def template(
    runtime: Runtime,
    fields: Mapping[str, Any] = _NOTHING,
    *,
    drain_s: int = 60,
    resources: Mapping[str, Any] = _NOTHING,
) -> dict[str, Any]:
    spec = {
        "model": {"uri": "file:///models/m", "servedName": "m"},
        "engine": engine(runtime, **fields),
        "drain": {"timeoutSeconds": drain_s},
        "resources": dict(resources),
    }
    meta = {"name": "s", "namespace": "n", "uid": "u", "generation": 1}
    service = InferenceService.parse({"metadata": meta, "spec": spec})
    (deployment,) = (each for each in render.manifests(service, _CHOICES) if each["kind"] == "Deployment")
    found: dict[str, Any] = deployment["spec"]["template"]
    return found


def container(runtime: Runtime, **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = template(runtime, fields)["spec"]["containers"][0]
    return found


def flag(args: list[str], name: str) -> str | None:
    return args[args.index(name) + 1] if name in args else None


@pytest.mark.parametrize("runtime", FOREIGN)
def test_a_foreign_pod_says_on_itself_what_it_is_and_where_it_is_asked(runtime: Runtime) -> None:
    told = {"custom": {"port": 9, "metrics": {"running": "a", "waiting": "b"}}}
    made = template(runtime, fields=told if runtime is Runtime.CUSTOM else {})
    pod = Pod.from_object({"metadata": made["metadata"]})
    assert pod.foreign
    assert pod.place is not None
    assert pod.place.port == (9 if runtime is Runtime.CUSTOM else labels.ENGINE_PORT)
    assert pod.place.path == TRAITS[runtime].metrics_path


def test_a_pod_of_ours_has_no_such_label_and_a_custom_one_without_metrics_is_not_asked() -> None:
    ours = Pod.from_object({"metadata": template(Runtime.PAGEFLEET)["metadata"]})
    custom = Pod.from_object({"metadata": template(Runtime.CUSTOM)["metadata"]})
    unknown = Pod.from_object({"metadata": {"labels": {labels.RUNTIME: "future"}}})
    assert (ours.foreign, custom.foreign, unknown.foreign) == (False, True, True)
    assert ours.place is custom.place is unknown.place is None


@pytest.mark.parametrize("runtime", FOREIGN)
def test_sigterm_comes_after_endpoints_have_followed_and_leaves_time_for_the_answers(runtime: Runtime) -> None:
    spec = template(runtime, drain_s=60)["spec"]
    before = spec["containers"][0]["lifecycle"]["preStop"]
    assert spec["terminationGracePeriodSeconds"] >= 5 + 60 + 10
    assert before == {"sleep": {"seconds": 5}} or before["exec"]["command"][2].startswith("sleep 5;")


def test_vllm_finishes_its_answers_after_sigterm_and_never_gets_its_word_for_at_once() -> None:
    assert flag(container(Runtime.VLLM)["args"], "--shutdown-timeout") == "60"
    args = template(Runtime.VLLM, drain_s=0)["spec"]["containers"][0]["args"]
    assert flag(args, "--shutdown-timeout") == "1"


def test_an_engine_keeps_its_own_defaults_where_the_user_says_nothing() -> None:
    assert container(Runtime.VLLM)["args"] == [
        "/models/m", "--port", "8000", "--served-model-name", "m", "--shutdown-timeout", "60",
    ]  # fmt: skip
    assert container(Runtime.TGI)["args"] == ["--model-id", "/models/m", "--hostname", "0.0.0.0", "--port", "8000"]


def test_memory_for_blocks_that_leave_the_gpu_is_that_of_a_pod() -> None:
    spread = {"kvCache": {"hostOffload": "24Gi"}, "parallelism": {"tensor": 4}}
    assert flag(container(Runtime.VLLM, **spread)["args"], "--kv-offloading-size") == "24"
    sglang = container(Runtime.SGLANG, **spread)["args"]
    assert ("--enable-hierarchical-cache" in sglang, flag(sglang, "--hicache-size")) == (True, "6")
    assert flag(container(Runtime.SGLANG, kvCache={"hostOffload": "1Gi"})["args"], "--hicache-size") == "1"


def options(**fields: Any) -> dict[str, Any]:
    """TensorRT-LLM's file of options."""
    (text,) = template(Runtime.TENSORRT_LLM, fields)["metadata"]["annotations"].values()
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def test_each_rank_of_tensorrt_llm_has_its_part_of_the_pods_memory_for_blocks() -> None:
    spread = options(kvCache={"hostOffload": "24Gi"}, parallelism={"tensor": 4})
    assert spread["kv_cache_config"] == {"free_gpu_memory_fraction": 0.9, "host_cache_size": 6 * 2**30}


DISK = {"kvCache": {"hostOffload": "32Gi", "diskOffload": "200G"}}


def test_blocks_on_the_disk_are_in_a_volume_that_the_engine_never_fills() -> None:
    made = template(Runtime.SGLANG, {**DISK, "parallelism": {"tensor": 2}})["spec"]
    (engine,) = made["containers"]
    (volume,) = (each for each in made["volumes"] if each["name"] == "kv-cache")
    (mount,) = (each for each in engine["volumeMounts"] if each["name"] == "kv-cache")
    told = {each["name"]: each["value"] for each in engine["env"]}
    assert volume == {"name": "kv-cache", "emptyDir": {"sizeLimit": "200G"}}
    assert flag(engine["args"], "--hicache-storage-backend") == "file"
    assert told["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] == mount["mountPath"]
    assert told["SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE"] == str(95 * 10**9)


def test_a_disk_for_blocks_is_requested_where_the_user_does_not_say_how_much_pods_take() -> None:
    assert container(Runtime.SGLANG, **DISK)["resources"]["requests"] == {"ephemeral-storage": "200G"}
    assert "resources" not in container(Runtime.SGLANG)
    for said in ({"requests": {"ephemeral-storage": "1T"}}, {"limits": {"ephemeral-storage": "1T"}}):
        (engine,) = template(Runtime.SGLANG, DISK, resources=said)["spec"]["containers"]
        assert engine["resources"] == said


def test_guesses_by_what_came_before_are_told_to_each_engine_in_its_words() -> None:
    ngram = {"speculative": {"method": "ngram", "tokens": 6}}
    looking = {"speculative": {**ngram["speculative"], "lookupMax": 4}}
    vllm = flag(container(Runtime.VLLM, **looking)["args"], "--speculative-config")
    assert json.loads(vllm or "") == {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_max": 4}
    sglang = container(Runtime.SGLANG, **ngram)["args"]
    assert flag(sglang, "--speculative-algorithm") == "NGRAM"
    assert flag(sglang, "--speculative-num-draft-tokens") == "7"
    assert flag(container(Runtime.TGI, **ngram)["args"], "--speculate") == "6"
    assert options(**looking)["speculative_config"] == {
        "decoding_type": "NGram",
        "max_draft_len": 6,
        "max_matching_ngram_size": 4,
    }


def test_an_engine_that_must_be_told_how_much_to_guess_is_told() -> None:
    ngram = {"speculative": {"method": "ngram"}}
    vllm = flag(container(Runtime.VLLM, **ngram)["args"], "--speculative-config")
    assert json.loads(vllm or "") == {"method": "ngram", "num_speculative_tokens": 4}
    assert "--speculative-num-draft-tokens" not in container(Runtime.SGLANG, **ngram)["args"]
    assert flag(container(Runtime.TGI, **ngram)["args"], "--speculate") == "4"
    assert options(**ngram)["speculative_config"] == {"decoding_type": "NGram", "max_draft_len": 4}


def test_the_smallest_priority_is_first_in_every_engine_that_goes_by_it() -> None:
    order = {"scheduling": {"policy": "priority"}}
    assert flag(container(Runtime.VLLM, **order)["args"], "--scheduling-policy") == "priority"
    sglang = container(Runtime.SGLANG, **order)["args"]
    assert {"--enable-priority-scheduling", "--schedule-low-priority-values-first"} <= set(sglang)
    assert (flag(sglang, "--default-priority-value"), flag(sglang, "--schedule-policy")) == ("0", "fcfs")
    by_arrival = container(Runtime.SGLANG, scheduling={"policy": "fcfs"})["args"]
    assert (flag(by_arrival, "--schedule-policy"), "--enable-priority-scheduling" in by_arrival) == ("fcfs", False)
    ours = container(Runtime.PAGEFLEET, scheduling={"policy": "fair"})["args"]
    assert flag(ours, "--scheduling-policy") == "fair"


FULL = {
    "dtype": "bfloat16",
    "maxModelLen": 4096,
    "maxNumSeqs": 64,
    "maxNumBatchedTokens": 2048,
    "extraArgs": ["--last"],
    "parallelism": {"tensor": 2},
}


@pytest.mark.parametrize(
    ("runtime", "more", "expected"),
    [
        (
            Runtime.VLLM,
            {"maxQueuedRequests": 36, "kvCache": {"size": "1Gi", "memoryUtilization": "0.8", "blockSize": 32}},
            {
                "--dtype": "bfloat16",
                "--max-model-len": "4096",
                "--max-num-seqs": "64",
                "--max-num-batched-tokens": "2048",
                "--max-num-queued-reqs": "100",
                "--kv-cache-memory-bytes": str(2**30),
                "--gpu-memory-utilization": "0.8",
                "--block-size": "32",
                "--tensor-parallel-size": "2",
            },
        ),
        (
            Runtime.SGLANG,
            {"maxQueuedRequests": 36, "kvCache": {"dtype": "fp8", "memoryUtilization": "800m"}, "quantization": "fp8"},
            {
                "--context-length": "4096",
                "--max-running-requests": "64",
                "--chunked-prefill-size": "2048",
                "--max-queued-requests": "36",
                "--mem-fraction-static": "0.8",
                "--kv-cache-dtype": "fp8_e4m3",
                "--quantization": "fp8",
                "--tp-size": "2",
            },
        ),
        (
            Runtime.TGI,
            {"maxNumSeqs": None, "kvCache": {"dtype": "fp8", "memoryUtilization": 1}, "quantization": "eetq"},
            {
                "--max-total-tokens": "4096",
                "--max-batch-prefill-tokens": "2048",
                "--cuda-memory-fraction": "1",
                "--kv-cache-dtype": "fp8_e4m3fn",
                "--quantize": "eetq",
                "--num-shard": "2",
            },
        ),
        (
            Runtime.TENSORRT_LLM,
            {"chatTemplate": {"configMapKeyRef": {"name": "c", "key": "k"}}},
            {
                "--max_seq_len": "4096",
                "--max_batch_size": "64",
                "--max_num_tokens": "2048",
                "--tp_size": "2",
                "--chat_template": "/etc/pagefleet/chat-template/template.jinja",
            },
        ),
    ],
    ids=lambda value: value if isinstance(value, Runtime) else "",
)
def test_the_same_fields_become_each_engines_own_flags(
    runtime: Runtime, more: dict[str, Any], expected: dict[str, str]
) -> None:
    fields = {name: value for name, value in {**FULL, **more}.items() if value is not None}
    args = container(runtime, **fields)["args"]
    assert {name: flag(args, name) for name in expected} == expected
    assert args[-1] == "--last"


def test_tensorrt_llm_reads_what_has_no_flag_from_a_file_that_is_an_annotation_of_its_pod() -> None:
    made = template(Runtime.TENSORRT_LLM, {"dtype": "float16", "kvCache": {"dtype": "fp8", "blockSize": 64}})
    args = made["spec"]["containers"][0]["args"]
    (volume,) = (each for each in made["spec"]["volumes"] if "downwardAPI" in each)
    (item,) = volume["downwardAPI"]["items"]
    (mount,) = (each for each in made["spec"]["containers"][0]["volumeMounts"] if each["name"] == volume["name"])
    assert flag(args, "--extra_llm_api_options") == f"{mount['mountPath']}/{item['path']}"
    (annotation,) = made["metadata"]["annotations"]
    assert item["fieldRef"]["fieldPath"] == f"metadata.annotations['{annotation}']"
    assert yaml.safe_load(made["metadata"]["annotations"][annotation]) == {
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
        "dtype": "float16",
        "kv_cache_config": {"free_gpu_memory_fraction": 0.9, "dtype": "fp8", "tokens_per_block": 64},
    }


def test_a_custom_engine_is_started_by_its_users_words_with_our_facts_in_variables() -> None:
    made = container(Runtime.CUSTOM, custom={"command": ["serve"], "port": 9}, extraArgs=["--port=$(PAGEFLEET_PORT)"])
    assert (made["command"], made["args"]) == (["serve"], ["--port=$(PAGEFLEET_PORT)"])
    assert made["ports"] == [{"name": "http", "containerPort": 9, "protocol": "TCP"}]
    told = {each["name"]: each["value"] for each in made["env"]}
    assert told == {
        "HOME": "/tmp",
        "PAGEFLEET_MODEL": "/models/m",
        "PAGEFLEET_SERVED_NAME": "m",
        "PAGEFLEET_PORT": "9",
        "PAGEFLEET_DRAIN_TIMEOUT": "60",
    }


def test_vllm_on_a_cpu_binds_no_threads_to_cores_that_are_not_its_own() -> None:
    made = container(Runtime.VLLM, device="cpu", kvCache={"size": "1Gi"})
    assert {"name": "VLLM_CPU_OMP_THREADS_BIND", "value": "nobind"} in made["env"]


def test_our_engine_takes_further_arguments_and_a_share_of_memory() -> None:
    args = container(Runtime.PAGEFLEET, kvCache={"memoryUtilization": "0.7"}, extraArgs=["--itl-goal-ms", "20"])["args"]
    assert flag(args, "--gpu-memory-utilization") == "0.7"
    assert args[-2:] == ["--itl-goal-ms", "20"]


@contextmanager
def answering(*bodies: str) -> Iterator[HTTPServer]:
    """A server whose answers are these, one after another, the last for ever."""
    left = list(bodies)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def script(port: int, limit_s: int) -> list[str]:
    names = ["x:running", "x:waiting"]
    return ["bash", "-c", until_idle(port, "/metrics", names, lag_s=0, limit_s=limit_s, every_s=0.02)]


def test_the_wait_before_sigterm_ends_when_nothing_runs_and_nothing_waits() -> None:
    busy, queued, idle = (
        'x:running{m="a b"} 2.0\n',
        "x:running 0\nx:waiting 1\nother 0\n",
        "x:running 0.0\nx:waiting 0\n",
    )
    asked: list[str] = [busy, queued, "nothing of ours\n", idle]
    with answering(*asked) as server:
        subprocess.run(script(server.server_port, 20), check=True, timeout=10)


@pytest.mark.parametrize("bodies", [("other 1\n",), ("x:ended 1\n", "x:ended 1\nx:running 0\n")])
def test_the_wait_before_sigterm_is_short_for_an_engine_that_was_never_asked(bodies: tuple[str, ...]) -> None:
    with answering(*bodies) as server:
        words = until_idle(server.server_port, "/m", ["x:running"], ["x:ended"], lag_s=0, limit_s=20, every_s=0.02)
        subprocess.run(["bash", "-c", words], check=True, timeout=10)


def test_the_wait_before_sigterm_has_a_limit_and_ends_with_its_engine() -> None:
    with answering("nothing of ours\n") as server:
        subprocess.run(script(server.server_port, 0), check=True, timeout=10)
        port = server.server_port
    subprocess.run(script(port, 20), check=True, timeout=5, stderr=subprocess.DEVNULL)
