"""Models of the Hugging Face hub, or of a mirror that speaks its protocol ($HF_ENDPOINT)."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from urllib.parse import quote

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.hf_api import RepoSibling

from pagefleet_fetch.errors import Missing, Unavailable, Unusable
from pagefleet_fetch.listing import Checksum, Listing, RemoteFile
from pagefleet_fetch.sources import Stream
from pagefleet_fetch.web import Web, refusal

DEFAULT_ENDPOINT = "https://huggingface.co"
_TRANSPORT_ERROR: type[Exception] = HfHubHTTPError.__mro__[1]
"""The base of what the hub's client raises when there is no answer; which HTTP library it is from depends on its
version."""
_TIMEOUT_S = 30.0


class Hub:
    """One repository, `org/name` or `org/name/FILE.gguf`."""

    def __init__(self, rest: str, revision: str | None, environment: Mapping[str, str]) -> None:
        words = rest.split("/")
        self._repository, self._file = "/".join(words[:2]), "/".join(words[2:]) or None
        self._revision = revision
        self._endpoint = (environment.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
        token = environment.get("HF_TOKEN") or None
        whose = "the token in HF_TOKEN is not accepted for it" if token else "it needs a token and none is given"
        self._way_out = (
            f"{whose}; put a token that may read the model into the key HF_TOKEN of the Secret that model.secretRef "
            "names (a gated model's terms must be accepted on the hub by the token's owner first), and check the name: "
            "the hub hides private models this way too"
        )
        self._api = HfApi(endpoint=self._endpoint, token=token or False)
        self._web = Web({"Authorization": f"Bearer {token}"} if token else {}, way_out=self._way_out)
        self._commit: str | None = None

    def listing(self) -> Listing:
        """The repository's files at the commit that the revision means now."""
        what = f"hf://{self._repository}" + (f" at revision {self._revision}" if self._revision else "")
        try:
            info = self._api.model_info(
                self._repository, revision=self._revision, files_metadata=True, timeout=_TIMEOUT_S
            )
        except HfHubHTTPError as error:
            status = error.response.status_code
            raise refusal(status, f"{what} ({self._endpoint})", self._way_out, error.response.headers) from error
        except (_TRANSPORT_ERROR, OSError, ValueError) as error:
            raise Unavailable(f"{what}: {self._endpoint} cannot be reached: {error}") from error
        if info.sha is None:
            raise Unusable(f"{what}: {self._endpoint} tells no commit; is it a hub?")
        self._commit = info.sha
        files = [_remote(sibling) for sibling in info.siblings or ()]
        if self._file is None:
            return Listing(tuple(files), info.sha)
        chosen = [file for file in files if file.path == self._file]
        if not chosen:
            raise Missing(f"{what} has no file {self._file!r}")
        return Listing(tuple(chosen), info.sha)

    def read(self, file: RemoteFile, offset: int) -> AbstractContextManager[Stream]:
        """From the commit that was listed: its bytes never change, and a size and a checksum are known of each."""
        place = f"{self._repository}/resolve/{self._commit}/{quote(file.path)}"
        return self._web.read(f"{self._endpoint}/{place}", offset)


def _remote(sibling: RepoSibling) -> RemoteFile:
    if sibling.lfs is not None:
        return RemoteFile(sibling.rfilename, sibling.lfs.size, Checksum("sha256", sibling.lfs.sha256))
    blob = None if sibling.blob_id is None else Checksum("git-sha1", sibling.blob_id)
    return RemoteFile(sibling.rfilename, sibling.size, blob)
