"""What is found out for the fit check, and how often somebody is asked."""

import asyncio
import base64
import json
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from pagefleet_api.service import InferenceService
from pagefleet_api.sizing.adapters import AdapterFacts
from pagefleet_api.sizing.facts import ModelFacts
from pagefleet_operator.apiserver import cluster as api
from pagefleet_operator.apiserver.cache import ServiceKey
from pagefleet_operator.facts.knowledge import Knowledge
from pagefleet_operator.kinds import Kind
from pagefleet_operator.models import fitting, model_files
from pagefleet_operator.models.access import Access
from pagefleet_operator.models.fitting import Fitting
from pagefleet_operator.models.model_files import Facts, FilesUnread, ModelKey, read_any, read_files
from tests.pagefleet_api.sizing import configs
from tests.pagefleet_fetch.servers import Fault, hub
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
        self.busy = False
        self.listing_fails = False
        self.given: list[Mapping[str, str]] = []
        self.secret: dict[str, str] | None = None
        access = Access(frozenset({"https://models.example.com"}), secrets)
        self.fitting = Fitting(self, self.told.append, everywhere=everywhere, access=access, reader=self.read_files)

    async def read(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        assert (kind.name, namespace, name) == ("Secret", "team", "hub")
        if self.listing_fails:
            raise api.Refused("secrets is forbidden")
        if self.secret is None:
            return None
        return {"data": {key: base64.b64encode(value.encode()).decode() for key, value in self.secret.items()}}

    async def read_files(self, model: ModelKey, credentials: Mapping[str, str]) -> Facts:
        self.given.append(credentials)
        self.reads.append(model.uri)
        if self.fails is not None:
            raise FilesUnread(self.fails, busy=self.busy)
        return AdapterFacts(8) if model.adapter else FACTS

    async def items(self, kind: Kind, namespace: str | None, *, fields: str = "") -> list[dict[str, Any]]:
        self.lists += 1
        if self.listing_fails:
            raise api.Refused("nodes is forbidden")
        return [node("NVIDIA-H200", "143771")]

    async def knows(self, of: InferenceService) -> Knowledge:
        """What is known once reading is over: of the model, then of its adapters."""
        await self.fitting.about(of)
        await asyncio.sleep(0.01)
        if (found := await self.fitting.about(of)).reading:
            await asyncio.sleep(0.01)
            found = await self.fitting.about(of)
        return found


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


def later(monkeypatch: pytest.MonkeyPatch, ahead_s: float) -> None:
    """The module's clock goes ahead."""
    monkeypatch.setattr(fitting, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s))


BUSY = FilesUnread("busy", busy=True)
BUSY_FOR_10_MIN = FilesUnread("busy", busy=True, after_s=600.0)


class Hub:
    """Reads whose ends the test decides."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, list[FilesUnread]] = {}
        self.open, self.told = asyncio.Event(), asyncio.Event()
        self.world = World()
        self.world.fitting = Fitting(self.world, lambda _: self.told.set(), everywhere=True, reader=self.read)

    async def read(self, model: ModelKey, credentials: Mapping[str, str]) -> ModelFacts:
        self.asked.append(model.uri)
        if model.uri.startswith("hf://slow/"):
            await self.open.wait()
        answers = self.answers.get(model.uri)
        if answers:
            raise answers.pop(0)
        return FACTS


async def test_few_models_that_take_long_hold_up_no_other_and_not_more_than_four_are_read_at_once() -> None:
    hub = Hub()
    for number in range(3):
        await hub.world.fitting.about(remote(f"hf://slow/{number}"))
    assert (await hub.world.knows(remote("hf://org/quick"))).facts == FACTS
    for number in range(3, 9):
        await hub.world.fitting.about(remote(f"hf://slow/{number}"))
    await asyncio.sleep(0.01)
    assert hub.asked == ["hf://slow/0", "hf://slow/1", "hf://slow/2", "hf://org/quick", "hf://slow/3"]
    hub.open.set()
    assert (await hub.world.knows(remote("hf://slow/8"))).facts == FACTS


async def test_a_hub_that_is_busy_is_left_alone_by_all_and_its_words_are_told_to_who_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = Hub()
    hub.answers["hf://org/a"] = [FilesUnread("hf://org/a answered HTTP 429", busy=True, after_s=90.0)]
    assert await hub.world.knows(remote("hf://org/a")) == Knowledge(unknown="hf://org/a answered HTTP 429")
    other = await hub.world.knows(remote("hf://org/b"))
    assert other == Knowledge(unknown="hf://org/b is not asked for yet: the hub is busy")
    assert hub.asked == ["hf://org/a"]
    later(monkeypatch, 95.0)
    assert (await hub.world.knows(remote("hf://org/b"))).facts == FACTS
    assert (await hub.world.knows(remote("hf://org/a"))).facts == FACTS


@pytest.mark.parametrize(
    ("answers", "until_s", "failures"),
    [
        ([(0, BUSY_FOR_10_MIN), (1, BUSY)], 600, 1),
        ([(0, BUSY), (0, BUSY), (1, BUSY), (2, BUSY)], 7, 1),
        ([(0, BUSY), (6, BUSY)], 16, 2),
        ([(0, BUSY_FOR_10_MIN), (1, None), (2, FilesUnread("no such Secret"))], 600, 1),
        ([(0, BUSY), (6, BUSY), (20, None)], 0, 0),
        ([(0, BUSY), (6, FilesUnread("no such model"))], 0, 0),
    ],
)
def test_answers_that_come_during_a_rest_make_it_no_shorter_and_are_no_further_failure(
    answers: list[tuple[float, FilesUnread | None]], until_s: float, failures: int
) -> None:
    rest = fitting._Rest()
    for now_s, answer in answers:
        rest = rest.after(answer, now_s)
    assert rest == (until_s, failures)


async def test_a_hub_that_is_busy_for_a_moment_is_asked_again_before_anybody_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fitting, "_REST_FIRST_S", 0.001)
    hub = Hub()
    hub.answers["hf://org/a"] = [FilesUnread("busy", busy=True), FilesUnread("busy", busy=True, after_s=0.0)]
    first = await hub.world.fitting.about(remote("hf://org/a"))
    assert first.reading
    await asyncio.wait_for(hub.told.wait(), 10)
    assert (await hub.world.fitting.about(remote("hf://org/a"))).facts == FACTS
    assert hub.asked == ["hf://org/a"] * 3


async def test_the_next_try_is_as_far_from_the_end_of_the_last_one_as_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    hub.answers["hf://slow/a"] = [FilesUnread("no such model")]
    await hub.world.knows(remote("hf://slow/a"))
    later(monkeypatch, 50.0)
    hub.open.set()
    assert (await hub.world.knows(remote("hf://slow/a"))).unknown == "no such model"
    later(monkeypatch, 59.0)
    await hub.world.knows(remote("hf://slow/a"))
    assert hub.asked == ["hf://slow/a"]
    later(monkeypatch, 60.5)
    assert (await hub.world.knows(remote("hf://slow/a"))).facts == FACTS


@pytest.mark.parametrize("spec", [{"capacityPolicy": "Ignore"}])
async def test_nobody_is_asked_when_nobody_wants_to_know(spec: dict[str, Any]) -> None:
    world = World()
    await world.knows(remote(**spec))
    assert (world.reads, world.lists) == ([], 0)


@pytest.mark.parametrize("uri", ["pkg://m", "file:///m", "pvc://claim"])
async def test_what_only_pods_have_is_left_to_the_pod(uri: str) -> None:
    world = World()
    found = await world.knows(service(model={"uri": uri}))
    assert (world.reads, found.unknown) == ([], f"{uri} is read by the pod alone; known once one is ready")


@pytest.mark.parametrize("uri", ["s3://bucket/m", "http://169.254.169.254/m", "https://models.example.com:8443/m"])
async def test_what_a_user_could_point_anywhere_is_not_asked_and_no_bucket_is_opened_by_ours(uri: str) -> None:
    world = World()
    found = await world.knows(service(model={"uri": uri}))
    assert (world.reads, found.reading, "pagefleet plan --fetch" in found.unknown) == ([], False, True)


async def test_an_address_that_the_administrator_lists_is_read() -> None:
    world = World()
    model = {"uri": "https://models.example.com/llama/"}
    assert (await world.knows(service(model=model, engine={"device": "cuda"}))).facts == FACTS
    assert (world.reads, world.given) == ([model["uri"]], [{}])


async def test_a_bucket_is_opened_with_its_keys_and_a_busy_one_keeps_nobody_from_the_others() -> None:
    world = World(secrets=True)
    world.secret = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ROLE_ARN": "c"}
    world.fails = "HTTP 503"
    world.busy = True
    bucket = {"secretRef": {"name": "hub"}}
    assert (await world.knows(service(model={"uri": "s3://one/m", **bucket}))).reading
    world.fails = None
    assert (await world.knows(service(model={"uri": "s3://two/m", **bucket}))).facts == FACTS
    assert world.given == [{"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}] * 2


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
        ({"HF_TOKEN": "x", "HF_ENDPOINT": "http://inside"}, False, "HF_ENDPOINT is an address"),
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
    monkeypatch.setattr(fitting, "_FILES_REMEMBERED", 1)
    world = World()
    for uri in ("hf://org/a", "hf://org/b", "hf://org/a"):
        await world.knows(remote(uri))
    assert world.reads == ["hf://org/a", "hf://org/b", "hf://org/a"]


async def test_all_adapters_of_many_services_are_read_once() -> None:
    world = World()
    engine = {"runtime": "vllm", "image": "v"}
    fleet = []
    for number in range(31):
        adapters = [{"name": f"a{each}", "uri": f"hf://org/a{number}-{each}"} for each in range(32)]
        fleet.append(remote(model={"uri": f"hf://org/m{number}", "adapters": adapters}, engine=engine))
    for _ in range(3_000):
        if not any([(await world.fitting.about(of)).reading for of in fleet]):
            break
        await asyncio.sleep(0.01)
    assert not any([(await world.knows(of)).reading for of in fleet[:3]])
    assert len(world.reads) == 31 * 33
    assert all("/m" in uri for uri in world.reads[:31]), "every model comes before anybody's adapters"


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
        served.faults["config.json"] = [Fault(status=429, headers={"Retry-After": "77"})]
        with pytest.raises(FilesUnread, match=r"answered HTTP 429") as busy:
            await read_files(ModelKey("hf://org/name"), {"HF_ENDPOINT": served.address, "HF_TOKEN": "good"})
        assert (busy.value.busy, busy.value.after_s) == (True, 77.0)


async def test_a_config_that_says_no_size_is_named() -> None:
    words = r"hf://org/name: config\.json: num_hidden_layers is absent"
    with hub(published({"model_type": "llama"})) as (served, _), pytest.raises(FilesUnread, match=words):
        await read_files(ModelKey("hf://org/name", "main"), {"HF_ENDPOINT": served.address})


async def test_a_fetcher_that_takes_too_long_is_ended_and_the_hub_counts_as_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_files, "_READ_LIMIT_S", 0.01)
    with pytest.raises(FilesUnread, match="hf://org/name: no answer within 0 s") as silent:
        await read_files(ModelKey("hf://org/name"), {})
    assert silent.value.busy


async def test_a_fetcher_that_ends_without_a_word_is_told_by_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(FilesUnread, match="hf://org/name: the fetcher ended with status 1") as broken:
        await read_files(ModelKey("hf://org/name"), {})
    assert not broken.value.busy


async def test_ranks_of_adapters_are_read_where_nobody_says_them() -> None:
    world = World()
    adapters = [
        {"name": "a", "uri": "hf://org/a"},
        {"name": "twin", "uri": "hf://org/a"},
        {"name": "said", "uri": "hf://org/b", "rank": 4},
        {"name": "here", "uri": "pvc://claim/c"},
    ]
    of = remote(model={"uri": "hf://org/llama", "adapters": adapters}, engine={"runtime": "vllm", "image": "v"})
    assert (await world.fitting.about(of)).reading
    found = await world.knows(of)
    assert sorted(world.reads) == ["hf://org/a", "hf://org/llama"]
    assert (found.facts, found.ranks) == (FACTS, {"a": 8, "twin": 8})


async def test_an_adapter_that_cannot_be_read_hides_no_model() -> None:
    world = World()

    async def broken(model: ModelKey, credentials: Mapping[str, str]) -> Facts:
        if model.adapter:
            raise FilesUnread("no such adapter")
        return FACTS

    world.fitting = Fitting(world, world.told.append, everywhere=True, reader=broken)
    model = {"uri": "hf://org/llama", "adapters": [{"name": "a", "uri": "hf://org/a"}]}
    found = await world.knows(remote(model=model, engine={"runtime": "vllm", "image": "v"}))
    assert (found.facts, found.ranks) == (FACTS, {})


async def test_the_fetcher_reads_an_adapters_rank() -> None:
    with hub({"adapter_config.json": b'{"r": 32}', "adapter_model.safetensors": b"never asked for"}) as (served, _):
        adapter = ModelKey("hf://org/name", adapter=True)
        assert await read_any(adapter, {"HF_ENDPOINT": served.address}) == AdapterFacts(32)


async def test_a_draft_is_read_as_its_model_is_and_without_it_nobody_knows() -> None:
    world = World()
    engine = {"runtime": "vllm", "image": "v", "device": "cuda", "speculative": {"method": "draft"}}
    adapters = [{"name": "a", "uri": "hf://org/a"}]
    model = {"uri": "hf://org/llama", "adapters": adapters, "draft": {"uri": "hf://org/small"}}
    found = await world.knows(remote(model=model, engine=engine))
    assert sorted(world.reads) == ["hf://org/a", "hf://org/llama", "hf://org/small"]
    assert (found.facts, found.draft, found.ranks) == (FACTS, FACTS, {"a": 8})

    async def broken(model: ModelKey, credentials: Mapping[str, str]) -> Facts:
        if model.uri == "hf://org/small":
            raise FilesUnread("no such draft")
        return FACTS

    world.fitting = Fitting(world, world.told.append, everywhere=True, reader=broken)
    found = await world.knows(remote(model=model, engine=engine))
    assert (found.facts, found.unknown) == (None, "no such draft")
    elsewhere = {**model, "draft": {"uri": "pvc://claim/small"}}
    assert (await world.knows(remote(model=elsewhere, engine=engine))).facts is None
