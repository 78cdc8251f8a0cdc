"""Pods of engines that are not ours, as their stories look at them."""

from e2e.service import Pod, Service, get_text
from pagefleet_api import labels
from pagefleet_api.runtimes import TRAITS, Runtime
from pagefleet_operator.engines.exposition import parse
from pagefleet_operator.engines.translation import load as load_of


def workers(service: Service) -> list[Pod]:
    """The pods of its groups beside the leaders, by name; terminating ones included."""
    found = service.kubectl.items("pods", f"{labels.GROUP_OF}={labels.child_name(service.name)}")
    return sorted((Pod.parse(each) for each in found), key=lambda pod: pod.name)


def held_by_vllm(pod: Pod) -> int:
    """Requests that a pod of vLLM tells in its own metrics."""
    names = TRAITS[Runtime.VLLM].names
    text = get_text(f"http://{pod.address}:{labels.ENGINE_PORT}/metrics")
    return load_of(parse(text, names.load_prefixes()), names).in_flight or 0
