"""Where a service's weights come from, as the resource says it: URI, revision, credentials, cache."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from pagefleet_api import adapters, draft, model_uri
from pagefleet_api.adapters import Adapter
from pagefleet_api.agreement import Agreeing
from pagefleet_api.draft import Draft
from pagefleet_api.hub import Revision, revision_of, revision_refusals, revision_rule
from pagefleet_api.schema import ObjectName, SecretName, Text, Within, joint, rules, text_rule

CacheLimit = Annotated[Text, Within(least="1Mi", example="500Gi")]

_DOWNLOADED = model_uri.cel_downloads("self")
_URI = text_rule(
    f"self.matches('{model_uri.CEL_PATTERN}') && !self.matches('{model_uri.ABOVE}')",
    model_uri.MESSAGE,
    model_uri.NO_MODEL,
)
_PLACE = "model"
_SECRET = (
    "model.secretRef {} is for models that are downloaded (hf, s3, gs, az, http, https), not for model.uri {}; leave "
    "it out: credentials of an oci:// registry belong into imagePullSecrets"
)
_SECRET_RULE = joint(
    f"!has(self.secretRef) || {_DOWNLOADED}", _SECRET, "self.secretRef.name", "self.uri", field="secretRef"
)
_CACHE = (
    "model.cache.mode {} is for models that are downloaded (hf, s3, gs, az, http, https), not for model.uri {}; leave "
    "model.cache out: other schemes have the model at hand"
)
_CACHE_RULE = joint(
    f"!has(self.cache) || !has(self.cache.mode) || self.cache.mode == 'None' || {_DOWNLOADED}",
    _CACHE,
    *("self.cache.mode", "self.uri"),
    field="cache.mode",
)
_MODE = "(has(self.mode) ? self.mode : 'None')"
_NO_CLAIM = (
    "model.cache.pvc is required with model.cache.mode PVC; give the name of a PersistentVolumeClaim, or leave "
    "model.cache.mode out"
)
_FOR_CLAIMS = "model.cache.{} {{}} is for model.cache.mode PVC, not for mode {{}}; set mode: PVC, or leave {} out"
_NO_JOB = "model.cache.prefetch false is for model.cache.mode PVC, not for mode {}; leave prefetch out"
_JOBS_LIMIT = (
    "model.cache.prefetch false is not available with model.cache.limit {}, which the download's Job keeps; leave "
    "prefetch or limit out"
)
_CACHE_RULES = (
    joint(f"{_MODE} != 'PVC' || has(self.pvc)", _NO_CLAIM, field="pvc"),
    *(
        joint(
            f"{_MODE} == 'PVC' || !has(self.{name})",
            _FOR_CLAIMS.format(name, name),
            *(f"self.{name}", _MODE),
            field=name,
            plain=f"model.cache.{name} is for model.cache.mode PVC alone; set mode: PVC, or leave {name} out",
        )
        for name in ("pvc", "limit")
    ),
    joint(f"!has(self.prefetch) || self.prefetch || {_MODE} == 'PVC'", _NO_JOB, _MODE, field="prefetch"),
    joint("!has(self.prefetch) || self.prefetch || !has(self.limit)", _JOBS_LIMIT, "self.limit", field="prefetch"),
)


def _is_uri(text: str) -> str:
    model_uri.parse(text)
    return text


class CacheMode(StrEnum):
    """Where a downloaded model is kept."""

    NONE = "None"
    NODE = "Node"
    PVC = "PVC"


class ModelCache(Agreeing):
    """A place for downloaded models that outlives pods."""

    model_config = ConfigDict(json_schema_extra=rules(*_CACHE_RULES))
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

    def _refusals(self) -> Iterator[str]:
        on_claim = self.mode is CacheMode.PVC
        if on_claim and self.pvc is None:
            yield _NO_CLAIM
        for name, value in (("pvc", self.pvc), ("limit", self.limit)):
            if not on_claim and value is not None:
                yield _FOR_CLAIMS.format(name, name).format(value, self.mode)
        if not self.prefetch and not on_claim:
            yield _NO_JOB.format(self.mode)
        if not self.prefetch and self.limit is not None:
            yield _JOBS_LIMIT.format(self.limit)


class ModelSource(Agreeing):
    """Where the weights come from."""

    model_config = ConfigDict(json_schema_extra=rules(revision_rule(_PLACE), _SECRET_RULE, _CACHE_RULE))
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
        yield from revision_refusals(_PLACE, self.uri, self.revision)
        if self.secret_ref is not None and not self.downloads:
            yield _SECRET.format(self.secret_ref.name, self.uri)
        if self.cache.mode is not CacheMode.NONE and not self.downloads:
            yield _CACHE.format(self.cache.mode, self.uri)
        yield from adapters.refusals(self.adapters)
        yield from draft.refusals(self.draft)

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
