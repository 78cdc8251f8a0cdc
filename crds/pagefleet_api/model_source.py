"""Where a service's weights come from, as the resource says it: URI, revision, credentials, cache."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from pagefleet_api import adapters, draft, model_uri
from pagefleet_api.adapters import Adapter
from pagefleet_api.draft import Draft
from pagefleet_api.hub import Revision, revision_of
from pagefleet_api.schema import Agreeing, Model, ObjectName, SecretName, Text, Within, rules, text_rule

CacheLimit = Annotated[Text, Within(least="1Mi", example="500Gi")]

_DOWNLOADED = model_uri.cel_downloads("self")
_CHECKED = tuple[str, str]

_URI = text_rule(
    f"self.matches('{model_uri.CEL_PATTERN}') && !self.matches('{model_uri.ABOVE}')",
    model_uri.MESSAGE,
    model_uri.NO_MODEL,
)
_REVISION: _CHECKED = (
    "!has(self.revision) || self.uri.startsWith('hf://')",
    "model.revision is for hf:// alone; leave it out, and put the version into the path of other URIs",
)
_SECRET: _CHECKED = (
    f"!has(self.secretRef) || {_DOWNLOADED}",
    "model.secretRef is for models that are downloaded (hf, s3, gs, az, http, https); leave it out: credentials of an "
    "oci:// registry belong into imagePullSecrets",
)
_CACHE: _CHECKED = (
    f"!has(self.cache) || !has(self.cache.mode) || self.cache.mode == 'None' || {_DOWNLOADED}",
    "model.cache.mode: Node and PVC are for models that are downloaded (hf, s3, gs, az, http, https); leave "
    "model.cache out: other schemes have the model at hand",
)
_PREFETCH: _CHECKED = (
    "!has(self.prefetch) || self.prefetch || (has(self.mode) && self.mode == 'PVC' && !has(self.limit))",
    "model.cache.prefetch: false is for model.cache.mode: PVC without model.cache.limit, which the download's Job "
    "keeps; leave prefetch or limit out",
)
_CLAIM: _CHECKED = (
    "(has(self.mode) && self.mode == 'PVC') == has(self.pvc) && (!has(self.limit) || has(self.pvc))",
    "model.cache.mode: PVC takes model.cache.pvc, the name of a PersistentVolumeClaim, and maybe model.cache.limit; "
    "modes None and Node take neither",
)


def _is_uri(text: str) -> str:
    model_uri.parse(text)
    return text


class CacheMode(StrEnum):
    """Where a downloaded model is kept."""

    NONE = "None"
    NODE = "Node"
    PVC = "PVC"


class ModelCache(Model):
    """A place for downloaded models that outlives pods."""

    model_config = ConfigDict(json_schema_extra=rules(_CLAIM, _PREFETCH))
    mode: CacheMode = Field(
        CacheMode.NONE,
        description="None: each pod downloads the model into its own storage. Node: each node that its pods may go to "
        "gets it once before any pod starts, for all services with that model, or with secretRef for those of the "
        "namespace with the same one; the operator needs the chart value nodeCache.enabled. PVC: a Job downloads it "
        "once onto a PersistentVolumeClaim before any pod starts, and pods of every service here with that model and "
        "claim mount it. Default: None.",
    )
    pvc: ObjectName | None = Field(
        None,
        description="The PersistentVolumeClaim, in the service's namespace; ReadWriteMany where pods run on several "
        "nodes.",
    )
    limit: CacheLimit | None = Field(
        None,
        description="What cached models may take in all, for example 500Gi: before a download, models that no service "
        "uses go, the longest unused first. Default: nothing is removed.",
    )

    prefetch: bool = Field(
        True,
        description="Download before any pod is wanted. False, with mode PVC: no Job; the first pod downloads the "
        "model onto the claim while it holds its GPU, and others wait for it. Default: true.",
    )

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        wanted = self.mode is CacheMode.PVC
        if not self.prefetch and (not wanted or self.limit is not None):
            raise ValueError(_PREFETCH[1])
        if wanted != (self.pvc is not None) or (self.limit is not None and not wanted):
            raise ValueError(_CLAIM[1])
        return self


class ModelSource(Agreeing):
    """Where the weights come from."""

    model_config = ConfigDict(json_schema_extra=rules(_REVISION, _SECRET, _CACHE))
    uri: Annotated[str, AfterValidator(_is_uri)] = Field(
        min_length=1,
        max_length=2048,
        description="hf://ORG/NAME, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, "
        "http(s)://HOST/PATH, pvc://CLAIM/PATH, oci://IMAGE#FOLDER, file:///PATH in the engine's image, "
        "pkg://PACKAGE in it.",
        json_schema_extra=rules(_URI),
    )
    revision: Revision | None = revision_of("weights")
    served_name: str | None = Field(
        None, min_length=1, max_length=253, description="The name that clients use. Default: the service's name."
    )
    secret_ref: SecretName | None = Field(
        None,
        description="Its keys are the environment of the download alone, for example HF_TOKEN, or AWS_ACCESS_KEY_ID "
        "and AWS_SECRET_ACCESS_KEY.",
    )
    cache: ModelCache = Field(default_factory=ModelCache)
    adapters: tuple[Adapter, ...] = Field(
        (),
        max_length=adapters.MOST,
        description="LoRA adapters that every pod serves beside the model, each by its name.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    draft: Draft | None = Field(
        None,
        description="A smaller model with the same tokens, which guesses for this one. With "
        "engine.speculative.method draft alone.",
    )

    def _refusals(self) -> Iterator[str]:
        if self.revision is not None and self.location.scheme != "hf":
            yield _REVISION[1]
        if self.secret_ref is not None and not self.downloads:
            yield _SECRET[1]
        if self.cache.mode is not CacheMode.NONE and not self.downloads:
            yield _CACHE[1]
        for fault in (adapters.refusal(self.adapters), draft.refusal(self.draft)):
            if fault is not None:
                yield fault

    @property
    def sources(self) -> tuple["ModelSource", ...]:
        """The model alone, then each adapter and the draft as if it were one: what comes from one place each.

        Where nothing is downloaded, neither credentials nor cache are about it.
        """
        plain = self.model_copy(update={"adapters": (), "draft": None})
        beside = (*self.adapters, *(() if self.draft is None else (self.draft,)))
        given = [{"uri": each.uri, "revision": each.revision} for each in beside]
        found = (plain, *(plain.model_copy(update={**each, "served_name": None}) for each in given))
        alone = {"secret_ref": None, "cache": ModelCache()}
        return tuple(source if source.downloaded else source.model_copy(update=alone) for source in found)

    def called(self, source: "ModelSource") -> str:
        """What one of `sources` is, for messages."""
        place = self.sources.index(source)
        names = ("the model", *(f"adapter {adapter.name}" for adapter in self.adapters), "the draft")
        return names[place]

    @property
    def location(self) -> model_uri.ModelUri:
        """The URI in parts."""
        return model_uri.parse(self.uri)

    @property
    def downloaded(self) -> bool:
        """Its files come over the network before the engine starts."""
        return self.location.scheme in model_uri.DOWNLOADED

    @property
    def downloads(self) -> bool:
        """Its files come so, or those of one of its adapters or its draft."""
        return any(source.downloaded for source in self.sources)

    @property
    def in_image(self) -> bool:
        """Its files are in an image of their own."""
        return self.location.scheme == "oci"

    @property
    def fetched_by_pods(self) -> bool:
        """Each pod sees to the download itself, before its engine starts."""
        return self.downloaded and (self.cache.mode is CacheMode.NONE or not self.cache.prefetch)

    @property
    def key(self) -> str:
        """The name of this version of the model in a cache."""
        return model_uri.key(self.uri, self.revision)
