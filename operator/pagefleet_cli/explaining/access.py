"""The API server as the user's kubeconfig reaches it: reading, and nothing else."""

import json
import os
import ssl
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from pagefleet_cli.errors import FactsMissing

TIMEOUT_S = 10.0
_DEFAULT_FILE = "~/.kube/config"
_SCHEMES = ("https://", "http://")


class Refused(Exception):
    """An answer that is none: its status (0 where nobody answered) and words."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Reader(Protocol):
    """Something that is asked for JSON by path."""

    def get(self, path: str) -> Any:
        """The parsed answer; raises Refused."""


class Web(NamedTuple):
    """An address over HTTP, with what its server wants of a client."""

    base_url: str
    headers: tuple[tuple[str, str], ...] = ()
    tls: ssl.SSLContext | None = None

    def get(self, path: str) -> Any:
        """The parsed answer; raises Refused."""
        if (fault := _fault(self.base_url)) is not None:
            raise Refused(0, f"the address {fault}")
        try:
            request = urllib.request.Request(self.base_url.rstrip("/") + path, headers=dict(self.headers))
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self.tls) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise Refused(error.code, _words(error.read()) or error.reason) from error
        except (OSError, ValueError, HTTPException) as error:
            raise Refused(0, f"{self.base_url}: {getattr(error, 'reason', error)}") from error


class Cluster(NamedTuple):
    """An API server and the namespace that the user works in."""

    api: Reader
    namespace: str


def connect(context: str | None) -> Cluster:
    """By kubeconfig, else as a pod of the cluster. Raises FactsMissing."""
    try:  # takes a second to import, and is not needed for files
        from kubernetes import client, config
    except ModuleNotFoundError as error:
        raise FactsMissing(f"explain needs {error.name}: pip install '.[cli,operator]' in a checkout") from error

    settings, files = client.Configuration(), os.environ.get("KUBECONFIG") or _DEFAULT_FILE
    found = any(Path(file).expanduser().exists() for file in files.split(os.pathsep))
    try:
        if context is None and not found:
            config.load_incluster_config(client_configuration=settings)
        else:
            config.load_kube_config(files, context, settings)
    except config.ConfigException as error:
        words = str(error) if found else f"there is no kubeconfig {files}, and this is no pod of a cluster"
        raise FactsMissing(f"no cluster: {words}; set KUBECONFIG, or --context to one of its contexts") from error
    except Exception as error:  # of a file that is no kubeconfig: the loader lets whatever it stumbles over through
        words = " ".join(str(error).split())
        raise FactsMissing(f"no cluster: {files} is no kubeconfig: {words}; set KUBECONFIG to one that is") from error
    return Cluster(_web(settings, files if found else "this pod's account"), _namespace(config, files, context))


def _web(settings: Any, where: str) -> Web:
    """How the API server is spoken to. Raises FactsMissing, which never has a credential in it."""
    token = settings.get_api_key_with_prefix("authorization") or settings.get_api_key_with_prefix("BearerToken")
    if token is not None and not (token.isascii() and token.isprintable()):
        problem = "a character that no request can carry, such as a line break; log in anew or correct it"
        raise FactsMissing(f"no cluster: the token of {where} has {problem}")
    if (fault := _fault(settings.host)) is not None:
        raise FactsMissing(f"no cluster: the server of {where} {fault}; write https://HOST:PORT there")
    try:
        return Web(settings.host, () if token is None else (("Authorization", token),), _tls(settings))
    except OSError as error:
        words = f"the certificate authority, client certificate or key of {where} cannot be used: {error}"
        raise FactsMissing(f"no cluster: {words}; correct it there") from error


def _fault(address: str) -> str | None:
    """Why nobody can be asked there, without the address itself: it may have a password in it."""
    if not address.startswith(_SCHEMES):
        return "does not begin with https://"
    try:
        parts = urlsplit(address)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return "is no address"
    if "@" in parts.netloc:
        return "has a user or a password in it, which belong under users in a kubeconfig"
    return None if named else "names no host"


def _namespace(config: Any, files: str, context: str | None) -> str:
    try:
        contexts, active = config.list_kube_config_contexts(files)
    except config.ConfigException:
        return "default"
    chosen = next((each for each in contexts if each["name"] == context), active)
    return str(chosen["context"].get("namespace", "default"))


def _tls(settings: Any) -> ssl.SSLContext | None:
    if not settings.host.startswith("https:"):
        return None
    tls = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    if not settings.verify_ssl:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    if settings.cert_file:
        tls.load_cert_chain(settings.cert_file, settings.key_file)
    return tls


def _words(body: bytes) -> str:
    """Of a Status of the API server, or of the operator's error."""
    try:
        found = json.loads(body)
        return str(found.get("message") or found.get("error") or "")
    except (ValueError, AttributeError, RecursionError):
        return body.decode(errors="replace").strip()[:200]
