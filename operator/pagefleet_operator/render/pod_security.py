"""The restricted Pod Security Standard: what our containers say for it, and what of a pod template it does not admit.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted, as
k8s.io/pod-security-admission (v0.34) checks it; sysctls, SELinux, AppArmor and Windows are left to that.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Part = Mapping[str, Any]

_VOLUMES = frozenset(
    {
        "name", "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim",
        "projected", "secret",
    }
)  # fmt: skip
_PROFILES = frozenset({"RuntimeDefault", "Localhost"})


def restricted() -> dict[str, Any]:
    """The security context of a container of ours."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
    }


def loosened(template: Part) -> tuple[str, ...]:
    """Each field that is outside the standard, with its path in the template; none for a pod that it admits."""
    spec = template["spec"]
    context = spec.get("securityContext") or {}
    found = [*_host(spec), *_volumes(spec), *_pod_user(context)]
    for name in ("initContainers", "containers"):
        for container in spec.get(name) or ():
            found += _container(container, context, f"{name}[{container.get('name')}]")
    return tuple(found)


def _host(spec: Part) -> Iterator[str]:
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name))


def _volumes(spec: Part) -> Iterator[str]:
    for volume in spec.get("volumes") or ():
        yield from (f"volumes[{volume.get('name')}].{name}" for name in volume if name not in _VOLUMES)


def _pod_user(context: Part) -> Iterator[str]:
    if context.get("runAsUser") == 0:
        yield "securityContext.runAsUser: 0"


def _container(container: Part, pod: Part, path: str) -> Iterator[str]:
    own = container.get("securityContext") or {}
    capabilities = own.get("capabilities") or {}
    at = f"{path}.securityContext"
    if own.get("privileged"):
        yield f"{at}.privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{at}.allowPrivilegeEscalation is not false"
    if "ALL" not in (capabilities.get("drop") or ()):
        yield f"{at}.capabilities.drop has no ALL"
    if set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
        yield f"{at}.capabilities.add"
    if own.get("runAsUser") == 0:
        yield f"{at}.runAsUser: 0"
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield f"{at}.runAsNonRoot is not true"
    profile = own.get("seccompProfile") or pod.get("seccompProfile") or {}
    if str(profile.get("type")) not in _PROFILES:
        yield f"{at}.seccompProfile"
    if any(port.get("hostPort") for port in container.get("ports") or ()):
        yield f"{path}.ports.hostPort"
