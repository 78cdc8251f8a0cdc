"""Certificates and kubeconfigs of a box, made by openssl: elliptic curves, about a second in all."""

import secrets
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from e2e.cluster import configuration
from e2e.cluster.errors import BoxError
from e2e.cluster.layout import MAX_NODES, Folders, Layout

EC_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
VALID_DAYS = "3650"


class Certificate(NamedTuple):
    name: str
    subject: str
    usage: str = "clientAuth"
    alternative_names: tuple[str, ...] = ()
    authority: str = "ca"

    @property
    def extensions(self) -> str:
        lines = ["keyUsage=critical,digitalSignature", f"extendedKeyUsage={self.usage}"]
        if self.alternative_names:
            lines.append(f"subjectAltName={','.join(self.alternative_names)}")
        return "\n".join(lines) + "\n"


USERS = {
    "admin": "/O=system:masters/CN=admin",
    "controllers": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
}


def certificates(layout: Layout) -> list[Certificate]:
    """Every certificate that the box needs, beside its two authorities. Pure."""
    services = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
    addresses = dict.fromkeys(("127.0.0.1", layout.host_address, layout.api_service_address))
    names = (*(f"IP:{address}" for address in addresses), *(f"DNS:{name}" for name in ("localhost", *services)))
    made = [
        Certificate("apiserver", "/CN=kube-apiserver", "serverAuth", names),
        Certificate("kubelet-client", "/O=system:masters/CN=apiserver-kubelet"),
        Certificate("front-client", "/CN=front-proxy", authority="front"),
    ]
    made += [Certificate(name, subject) for name, subject in USERS.items()]
    for node in (layout.node(f"node{number}") for number in range(1, MAX_NODES + 1) if layout.bridge):
        subject = f"/O=system:nodes/CN=system:node:{node.name}"
        made.append(Certificate(node.name, subject))
        made.append(
            Certificate(f"{node.name}-serving", subject, "serverAuth", (f"IP:{node.address}", f"DNS:{node.name}"))
        )
    return made


def create(layout: Layout, folders: Folders) -> None:
    """Make everything that is not there yet; a set that was only begun is made anew."""
    complete = folders.pki / "complete"
    if complete.exists():
        return
    folders.pki.mkdir(parents=True, exist_ok=True)
    folders.kubeconfig("admin").parent.mkdir(exist_ok=True)
    made = certificates(layout)
    with ThreadPoolExecutor(4) as pool:
        for authority in ("ca", "front"):
            _authority(folders.pki, authority)
        signed = pool.map(lambda certificate: _sign(folders.pki, certificate), made)
        _account_keys(folders.pki)
        list(signed)
    users = {*USERS, *(certificate.name for certificate in made if certificate.name.startswith("node"))}
    for user in sorted(user for user in users if not user.endswith("-serving")):
        pem = [(folders.pki / name).read_bytes() for name in ("ca.crt", f"{user}.crt", f"{user}.key")]
        path = folders.kubeconfig(user)
        path.touch(mode=0o600)
        path.write_text(configuration.kubeconfig(layout, *pem))
    complete.touch()


def _openssl(folder: Path, *arguments: str) -> None:
    result = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode:
        raise BoxError(f"openssl {arguments[0]} failed: {result.stderr.strip()}")


def _authority(folder: Path, name: str) -> None:
    subject = f"/CN=pagefleet-{name}"
    files = ("-keyout", f"{name}.key", "-out", f"{name}.crt")
    _openssl(folder, "req", "-x509", *EC_KEY, "-days", VALID_DAYS, "-subj", subject, *files)


def _account_keys(folder: Path) -> None:
    _openssl(folder, "genrsa", "-out", "accounts.key", "2048")
    _openssl(folder, "rsa", "-in", "accounts.key", "-pubout", "-out", "accounts.pub")


def _sign(folder: Path, wanted: Certificate) -> None:
    name, authority = wanted.name, wanted.authority
    (folder / f"{name}.ext").write_text(wanted.extensions)
    request = ("-subj", wanted.subject, "-keyout", f"{name}.key", "-out", f"{name}.csr")
    _openssl(folder, "req", "-new", *EC_KEY, *request)
    signer = ("-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-set_serial", f"0x{secrets.token_hex(8)}")
    files = ("-in", f"{name}.csr", "-extfile", f"{name}.ext", "-out", f"{name}.crt")
    _openssl(folder, "x509", "-req", *files, *signer, "-days", VALID_DAYS)
    for suffix in ("csr", "ext"):
        (folder / f"{name}.{suffix}").unlink()
