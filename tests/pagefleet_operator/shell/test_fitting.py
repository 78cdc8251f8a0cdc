"""What is found out for the fit check, and how often somebody is asked."""

import asyncio
import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from pagefleet_api.service import InferenceService
from pagefleet_api.sizing.facts import ModelFacts
from pagefleet_operator import cluster as api
from pagefleet_operator import fitting
from pagefleet_operator.cache import ServiceKey
from pagefleet_operator.fitting import FilesUnread, Fitting, ModelKey, read_files
from pagefleet_operator.kinds import Kind
from pagefleet_operator.knowledge import Knowledge
from tests.pagefleet_api.sizing import configs
from tests.pagefleet_fetch.servers import hub
from tests.pagefleet_operator.capacity.test_knowledge import node
from tests.pagefleet_operator.status.build import service

FACTS = ModelFacts.read(configs.LLAMA_8B)


def remote(uri: str = "hf://org/llama", **spec: Any) -> InferenceService:
    """A service whose model is downloaded."""
    return service(**{"engine": {"device": "cuda"}, "model": {"uri": uri, "revision": "main"}, **spec})


class World:
    """A reader and a lister that count, and what was told."""

    def __init__(self, *, everywhere: bool = True, secrets: bool = False) -> None:
        self.reads: list[str] = []
        self.lists = 0
        self.told: list[ServiceKey] = []
        self.fails: str | None = None
        self.listing_fails = False
        self.given: list[Mapping[str, str]] = []
        self.secret: dict[str, str] | None = None
        self.fitting = Fitting(self, self.told.append, everywhere=everywhere, secrets=secrets, reader=self.read_files)

    async def read(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        assert (kind.name, namespace, name) == ("Secret", "team", "hub")
        if self.listing_fails:
            raise api.Refused("secrets is forbidden")
        if self.secret is None:
            return None
        return {"data": {key: base64.b64encode(value.encode()).decode() for key, value in self.secret.items()}}

    async def read_files(self, model: ModelKey, credentials: Mapping[str, str]) -> ModelFacts:
        self.given.append(credentials)
        assert model.revision == "main"
        self.reads.append(model.uri)
        if self.fails is not None:
            raise FilesUnread(self.fails)
        return FACTS

    async def items(self, kind: Kind, namespace: str | None, *, fields: str = "") -> list[dict[str, Any]]:
        self.lists += 1
        if self.listing_fails:
            raise api.Refused("nodes is forbidden")
        return [node("NVIDIA-H200", "143771")]

    async def knows(self, of: InferenceService) -> Knowledge:
        """What is known once reading is over."""
        await self.fitting.about(of)
        await asyncio.sleep(0.01)
        return await self.fitting.about(of)


async def test_a_model_is_read_once_and_whoever_asked_is_told() -> None:
    world = World()
    first = await world.fitting.about(remote())
    assert (first.facts, first.reading) == (None, True)
    assert (await world.fitting.about(remote())).reading
    found = await world.knows(remote())
    assert (found.facts, found.reading) == (FACTS, False)
    assert found.gpus is not None
    assert found.gpus[0].gpu.name == "H200"
    await world.knows(remote())
    assert (world.reads, world.lists, world.told) == (["hf://org/llama"], 1, [ServiceKey("team", "llama")])


async def test_a_failure_is_told_with_its_words_and_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.fails = "hf://org/llama answered HTTP 401: no token"
    assert await world.knows(remote()) == Knowledge(unknown=world.fails)
    await world.knows(remote())
    assert len(world.reads) == 1
    monkeypatch.setattr(fitting, "_FAILED_FIRST_S", 0.0)
    world = World()
    world.fails = "later"
    await world.knows(remote())
    world.fails = None
    assert (await world.knows(remote())).facts == FACTS


@pytest.mark.parametrize("spec", [{"capacityPolicy": "Ignore"}])
async def test_nobody_is_asked_when_nobody_wants_to_know(spec: dict[str, Any]) -> None:
    world = World()
    await world.knows(remote(**spec))
    assert (world.reads, world.lists) == ([], 0)


@pytest.mark.parametrize("uri", ["pkg://m", "file:///m", "s3://bucket/m", "http://169.254.169.254/m", "pvc://claim"])
async def test_what_a_user_could_point_anywhere_is_left_to_the_pod(uri: str) -> None:
    world = World()
    found = await world.knows(service(model={"uri": uri}))
    assert (world.reads, found.unknown) == ([], f"{uri} is read by the pod alone; known once one is ready")


async def test_a_model_that_is_one_file_is_left_to_the_pod() -> None:
    world = World()
    assert "read by the pod alone" in (await world.knows(remote("hf://org/name/model.Q4_0.gguf"))).unknown
    assert world.reads == []


async def test_a_reader_that_a_bug_ended_is_told_and_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(model: ModelKey, credentials: Mapping[str, str]) -> ModelFacts:
        raise OSError("no space left on device")

    world = World()
    world.fitting = Fitting(world, world.told.append, everywhere=True, reader=broken)
    found = await world.knows(remote())
    assert (found.reading, "no space left on device" in found.unknown) == (False, True)
    assert world.told
    assert "model_files_crashed" in caplog.text


async def test_what_a_secret_opens_is_not_asked_for() -> None:
    world = World()
    found = await world.knows(remote(model={"uri": "hf://org/llama", "secretRef": {"name": "hub"}}))
    assert (world.reads, "model.secretRef" in found.unknown) == ([], True)


GATED = {"uri": "hf://org/llama", "revision": "main", "secretRef": {"name": "hub"}}


async def test_a_gated_model_is_opened_with_the_token_alone() -> None:
    world = World(secrets=True)
    world.secret = {"HF_TOKEN": "hf_x\n", "AWS_SECRET_ACCESS_KEY": "other"}
    assert (await world.knows(remote(model=GATED))).facts == FACTS
    assert world.given == [{"HF_TOKEN": "hf_x"}]
    await world.knows(remote())
    assert len(world.reads) == 2, "what one namespace's token opened is not shown to others"


@pytest.mark.parametrize(
    ("secret", "forbidden", "words"),
    [
        (None, False, "a Secret with HF_TOKEN"),
        ({"token": "x"}, False, "a Secret with HF_TOKEN"),
        ({"HF_TOKEN": "x", "HF_ENDPOINT": "http://inside"}, False, "without HF_ENDPOINT"),
        ({"HF_TOKEN": "x"}, True, "secrets is forbidden"),
    ],
)
async def test_a_secret_that_is_of_no_use_is_named(secret: dict[str, str] | None, forbidden: bool, words: str) -> None:
    world = World(secrets=True)
    world.secret, world.listing_fails = secret, forbidden
    found = await world.knows(remote(model=GATED))
    assert words in found.unknown
    assert world.reads == []


async def test_a_model_on_cpus_asks_for_no_nodes() -> None:
    world = World()
    assert (await world.knows(remote(engine={"device": "cpu", "kvCache": {"size": "1Gi"}}))).facts == FACTS
    assert world.lists == 0


@pytest.mark.parametrize("everywhere", [True, False])
async def test_where_nodes_may_not_be_read_their_types_are_unknown(everywhere: bool) -> None:
    world = World(everywhere=everywhere)
    world.listing_fails = True
    assert (await world.knows(remote())).gpus is None
    assert world.lists == everywhere


async def test_not_more_models_are_remembered_than_is_sane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_REMEMBERED", 1)
    world = World()
    for uri in ("hf://org/a", "hf://org/b", "hf://org/a"):
        await world.knows(remote(uri))
    assert world.reads == ["hf://org/a", "hf://org/b", "hf://org/a"]


def published(config: dict[str, Any]) -> dict[str, bytes]:
    index = {"metadata": {"total_size": 12_345_678}, "weight_map": {"a": "a.safetensors"}}
    return {
        "config.json": json.dumps(config).encode(),
        "model.safetensors.index.json": json.dumps(index).encode(),
        "a.safetensors": b"never asked for",
    }


async def test_the_fetcher_reads_config_and_index_with_the_credentials_that_it_is_given() -> None:
    with hub(published(configs.LLAMA_8B), token="good") as (served, _):
        facts = await read_files(ModelKey("hf://org/name"), {"HF_ENDPOINT": served.address, "HF_TOKEN": "good"})
        assert facts.stored(2).total_bytes == 12_345_678
        with pytest.raises(FilesUnread, match=r"answered HTTP 403: .*HF_TOKEN"):
            await read_files(ModelKey("hf://org/name"), {"HF_ENDPOINT": served.address, "HF_TOKEN": "bad"})


async def test_a_config_that_says_no_size_is_named() -> None:
    words = r"hf://org/name: config\.json: num_hidden_layers is absent"
    with hub(published({"model_type": "llama"})) as (served, _), pytest.raises(FilesUnread, match=words):
        await read_files(ModelKey("hf://org/name", "main"), {"HF_ENDPOINT": served.address})
