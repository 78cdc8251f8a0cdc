"""`spec.rollout` as types."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import ConfigDict, Field

from pagefleet_api.agreement import Agreeing
from pagefleet_api.schema import AUTO, Model, Share, Text, Within, joint, rules

TtftRegression = Annotated[Text, Within(least="0", most="10")]
ItlRegression = Annotated[Text, Within(least="0", most="10")]
ErrorRate = Annotated[Text, Within(least="0", most="1")]


class Analysis(Model):
    """What a new generation of pods must show beside the one before it, before it takes over."""

    traffic_percent: int = Field(
        10,
        ge=1,
        le=50,
        description="Share of the requests that it gets, by its share of the pods; at least one pod. Default: 10.",
    )
    hold_seconds: int = Field(
        300,
        ge=1,
        le=86_400,
        description="So long it must stay within the bounds once its pods are ready. Default: 300.",
    )
    max_ttft_regression: TtftRegression = Field(
        "0.2",
        alias="maxTTFTRegression",
        description="Its p95 time to first token may be larger by this share, 0.2 for a fifth. Default: 0.2.",
    )
    max_itl_regression: ItlRegression = Field(
        "0.2",
        alias="maxITLRegression",
        description="Its p95 time between two tokens may be larger by this share. Default: 0.2.",
    )
    max_error_rate: ErrorRate = Field(
        "0.01", description="Its share of failed requests may be larger by this much, 0 to 1. Default: 0.01."
    )


_NOTHING = ("0", "0%")
_NO_WAY = (
    "rollout.maxSurge {} and rollout.maxUnavailable {} must not both be 0: no pod could ever be replaced; give one of "
    "them 1 or more, or leave it out"
)


class Rollout(Agreeing):
    """How a change of the pods is rolled out."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            joint(
                f"!(has(self.maxSurge) && has(self.maxUnavailable) && string(self.maxSurge) in {[*_NOTHING]} "
                f"&& string(self.maxUnavailable) in {[*_NOTHING]})",
                _NO_WAY,
                *("self.maxSurge", "self.maxUnavailable"),
                field="maxUnavailable",
            )
        )
    )
    max_surge: Share = Field(
        AUTO, description="Pods above the wanted number. Auto: 1 while it can be placed, else 0. Default: Auto."
    )
    max_unavailable: Share = Field(
        AUTO,
        description="Pods below the wanted number. Auto: 0 while a surge pod can be placed, else 1. Default: Auto.",
    )
    progress_deadline_seconds: int = Field(
        3600, ge=1, le=86_400, description="Without progress for so long, the service is Stalled. Default: 3600."
    )
    analysis: Analysis | None = Field(
        None, description="Try a change out on a few pods first, and take it back when they answer worse."
    )

    def _refusals(self) -> Iterator[str]:
        if self.max_surge in _NOTHING and self.max_unavailable in _NOTHING:
            yield _NO_WAY.format(self.max_surge, self.max_unavailable)
