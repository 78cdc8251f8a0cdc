"""Models on nodes: what is to be written so that they come there, and how far each is. Pure.

A node's label says what becomes of a model on it. `wanted` brings the DaemonSet's pod there; `ready`, set while that
pod is, lets the scheduler place pods that mount the model. What nobody wants goes in this order: the claim,
which stays for as long as pods mount it, then the volume, then label and DaemonSet.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pagefleet_api import labels
from pagefleet_api.download import DownloadProgress
from pagefleet_api.reasons import Reason
from pagefleet_api.service import InferenceService
from pagefleet_operator.facts.observed import Body, Pod
from pagefleet_operator.facts.problems import condition_of
from pagefleet_operator.plan.node_placing import holders
from pagefleet_operator.plan.nodes_seen import ClaimKey, NodesSeen
from pagefleet_operator.plan.prefetch import NOTHING_TOLD, Prefetch, Stage, how_far, owner_uids

_NAMED = 5
"""Nodes that a message names; of more it tells the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeModel:
    """One model that services want on nodes, and the objects for it; volumes and claims by the users' namespace.

    secret: of the one namespace whose credentials it is fetched with; None where it takes none.
    """

    name: str
    users: tuple[InferenceService, ...]
    daemon_set: Body
    volumes: Mapping[str, Body]
    claims: Mapping[str, Body]
    secret: str | None = None


class Write(NamedTuple):
    """Apply an object."""

    manifest: Body


class Delete(NamedTuple):
    """Take away an object of a kind, as it was seen."""

    kind: str
    live: Body


class Mark(NamedTuple):
    """Set a label of a node; None takes it away."""

    node: str
    label: str
    value: str | None


Step = Write | Delete | Mark


def node_label(name: str) -> str:
    """The label of a model on nodes."""
    return f"{labels.NODE_MODEL}/{name}"


def places(model: NodeModel, seen: NodesSeen) -> list[str]:
    """Nodes that the model is to be on: where pods of any of its users may go."""
    return [node["metadata"]["name"] for node in holders(seen.nodes, model.users)]


def steps_for(model: NodeModel, seen: NodesSeen) -> list[Step]:
    """What brings a wanted model on."""
    live = seen.daemon_set(model.name)
    steps: list[Step] = []
    if live is None or (_note(live) != _note(model.daemon_set) and not _is_going(live)):
        steps.append(Write(model.daemon_set))
    for namespace in model.volumes:
        steps += _namespace_steps(model.volumes[namespace], model.claims[namespace], seen)
    surplus = [volume for volume in seen.volumes_of(model.name) if _claim_key(volume).namespace not in model.volumes]
    return [*steps, *_label_steps(model, seen), *_farewell(surplus, seen)]


def leftovers(wanted: Collection[str], seen: NodesSeen) -> dict[str, list[Step]]:
    """What takes away each model that nobody wants, by its name."""
    marked = (label for node in seen.nodes for label in node["metadata"].get("labels") or {})
    of_nodes = {label.partition("/")[2] for label in marked if label.startswith(f"{labels.NODE_MODEL}/")}
    names = of_nodes | seen.models()
    return {name: _leave(name, seen) for name in sorted(names - {*wanted, ""})}


def progress(
    model: NodeModel, user: InferenceService, seen: NodesSeen, told: Mapping[str, DownloadProgress] = NOTHING_TOLD
) -> Prefetch:
    """How far the model is on nodes for one user's pods. told: what pods said lately of their downloads, by uid."""
    volume, claim = model.volumes[user.namespace], seen.claim(ClaimKey.of(model.claims[user.namespace]))
    live = seen.volume(volume["metadata"]["name"])
    if (hindered := _hindered(volume, live, claim)) is not None:
        return hindered
    nodes = holders(seen.nodes, [user])
    wanted = [node["metadata"]["name"] for node in nodes]
    if not wanted:
        words = f"none of {len(seen.nodes)} nodes may hold it: none has what the pods' podTemplate and GPUs ask for"
        return Prefetch(Stage.FETCHING, words)
    there = [node["metadata"]["name"] for node in nodes if _value(node, model.name) == labels.NODE_MODEL_READY]
    held = seen.pods.of(model.name)
    pods = {node: held[node] for node in wanted if node in held}
    trouble = _trouble(model, {node: pod for node, pod in pods.items() if node not in there})
    if there and live is not None and claim is not None:
        return Prefetch(Stage.CACHED, "; ".join(filter(None, (f"it is on {_names(there)} of {len(wanted)}", trouble))))
    if trouble:
        return Prefetch(Stage.FAILING, trouble)
    under_way = [node for node in wanted if node not in there]
    if not pods:
        why = f"kubectl describe daemonset -n {_namespace(model)} {model.name} tells what keeps its pods"
        return Prefetch(Stage.FETCHING, f"{_where(model)} is to fetch it on {_names(under_way)}; {why}")
    known = {node: told[pod.uid] for node, pod in sorted(pods.items()) if pod.uid in told}
    first = max(known, key=lambda node: known[node].bytes, default=None)
    far = f"{_look(model)} tells how far" if first is None else f"furthest is {first}: {how_far(known[first])}"
    return Prefetch(Stage.FETCHING, f"{_where(model)} fetches it on {_names(under_way)}; {far}")


def _hindered(volume: Body, live: Body | None, claim: Body | None) -> Prefetch | None:
    """What keeps pods from mounting it, however far the model is."""
    if live is not None and _path(live) != _path(volume):
        words = (
            f"PersistentVolume {live['metadata']['name']} is at {_path(live)} and the chart's nodeCache.path says "
            f"{_path(volume)}: set that back, or delete the services with this model and make them again"
        )
        return Prefetch(Stage.FAILING, words)
    key, going = _claim_key(volume), any(body is not None and _is_going(body) for body in (claim, live))
    words = f"its claim {key.name} is on its way out, and made anew once no pod of {key.namespace} mounts it"
    return Prefetch(Stage.FETCHING, words) if going else None


def _namespace_steps(volume: Body, claim: Body, seen: NodesSeen) -> Iterator[Step]:
    """The volume first, and its claim at the next look: the binder looks at a claim whose volume it does not know yet
    only 15 s later. A volume whose claim was made anew is made anew too: it is bound to the former one's uid.
    """
    live, taken = seen.volume(volume["metadata"]["name"]), seen.claim(ClaimKey.of(claim))
    if taken is not None and _is_going(taken):
        return
    bound = None if live is None else (live["spec"].get("claimRef") or {}).get("uid")
    if live is not None and bound is not None and (taken is None or taken["metadata"].get("uid") != bound):
        if not _is_going(live):
            yield Delete("PersistentVolume", live)
        return
    if live is None:
        yield Write(volume)
    elif taken is None or owner_uids(dict(taken)) != owner_uids(dict(claim)):
        yield Write(claim)


def _label_steps(model: NodeModel, seen: NodesSeen) -> Iterator[Mark]:
    """Where pods read the model it stays held, whether or not new ones may go there."""
    keys = [_claim_key(volume) for volume in seen.volumes_of(model.name)]
    wanted = {*places(model, seen), *(node for key in keys for node in seen.readers.get(key, ()))}
    ready = {node for node, pod in seen.pods.of(model.name).items() if pod.ready}
    for node in seen.nodes:
        name = node["metadata"]["name"]
        value = labels.NODE_MODEL_READY if name in ready else labels.NODE_MODEL_WANTED
        yield from _marked(node, model.name, value if name in wanted else None)


def _leave(name: str, seen: NodesSeen) -> list[Step]:
    """While a volume is there, the model stays: somebody may read it."""
    volumes = seen.volumes_of(name)
    if volumes:
        return list(_farewell(volumes, seen))
    live = seen.daemon_set(name)
    going = [] if live is None or _is_going(live) else [Delete("DaemonSet", live)]
    return [*(mark for node in seen.nodes for mark in _marked(node, name, None)), *going]


def _farewell(volumes: Sequence[Body], seen: NodesSeen) -> Iterator[Step]:
    """Claims that no template mounts, and volumes whose claim is gone."""
    for volume in volumes:
        key = _claim_key(volume)
        claim = seen.claim(key)
        if key in seen.mounted:
            continue
        if claim is not None and (claim.get("spec") or {}).get("volumeName") == volume["metadata"]["name"]:
            if not _is_going(claim):
                yield Delete("PersistentVolumeClaim", claim)
        elif not _is_going(volume):
            yield Delete("PersistentVolume", volume)


def _marked(node: Body, name: str, value: str | None) -> Iterator[Mark]:
    if _value(node, name) != value:
        yield Mark(node["metadata"]["name"], node_label(name), value)


def _trouble(model: NodeModel, pods: Mapping[str, Pod]) -> str | None:
    """What keeps the model from a node, in the words of its pod."""
    problems = [(node, pod.problem) for node, pod in sorted(pods.items()) if pod.problem is not None]
    told = [f"{node}: {problem.message}" for node, problem in problems if problem.reason is not Reason.STARTING]
    return f"{_where(model)} on {told[0]}" if told else None


def _where(model: NodeModel) -> str:
    return f"DaemonSet {_namespace(model)}/{model.name}"


def _namespace(model: NodeModel) -> str:
    return str(model.daemon_set["metadata"]["namespace"])


def _look(model: NodeModel) -> str:
    return f"kubectl logs -n {_namespace(model)} -l {labels.MODEL}={model.name} --prefix"


def _names(nodes: Sequence[str]) -> str:
    return ", ".join(sorted(nodes)) if len(nodes) <= _NAMED else f"{len(nodes)} nodes"


def _claim_key(volume: Body) -> ClaimKey:
    reference = volume["spec"].get("claimRef") or {}
    return ClaimKey(str(reference.get("namespace")), str(reference.get("name")))


def _path(volume: Body) -> str:
    return str((volume["spec"].get("local") or {}).get("path"))


def _value(node: Body, name: str) -> str | None:
    found = (node["metadata"].get("labels") or {}).get(node_label(name))
    return None if found is None else str(found)


def _note(body: Body) -> str | None:
    found = (body["metadata"].get("annotations") or {}).get(labels.FETCH_DIGEST)
    return None if found is None else str(found)


def _is_going(body: Body) -> bool:
    return body["metadata"].get("deletionTimestamp") is not None


def unsettled(seen: NodesSeen) -> bool:
    """Whether some pod is not ready, or something is on its way out: worth a look soon."""
    ready = [(condition_of(body.get("status") or {}, "Ready") or {}).get("status") == "True" for body in seen.pods]
    return not all(ready) or any(_is_going(body) for body in (*seen.daemon_sets, *seen.volumes, *seen.claims))
