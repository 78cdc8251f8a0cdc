"""The last step of becoming ready, which no status tells: that new connections reach every pod."""

from e2e.exchange import Target
from e2e.load import Load, LoadPlan, numbered
from e2e.service import Pod, Service

_ENDED = "request_finished"


def until_every_pod_answers(service: Service, pods: list[Pod]) -> int:
    """Ask until each pod's log tells of an answer, as kube-proxy learns of a ready pod later than the status does.

    The number of requests that it took.
    """
    target, asked = Target(url=service.cluster_url, model=service.model), 0
    while not all(_ENDED in service.kubectl.run("logs", pod.name) for pod in pods):
        with Load.start(LoadPlan(target=target, ask=numbered(1), clients=6, requests=6)) as load:
            asked += len(load.wait())
    return asked
