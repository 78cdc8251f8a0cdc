"""How far the download of a model is, as the fetcher tells it: `GET /progress` on the admin port of its pod."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

PATH = "/progress"
Size = Annotated[int, Field(ge=0, le=2**60)]


class DownloadProgress(BaseModel):
    """Bytes that are there, with those of earlier tries, and in all; 404 before these are known.

    bytes_per_second: lately; absent until it was measured.
    """

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")

    bytes: Size
    total_bytes: Size
    bytes_per_second: Size | None = None

    @property
    def seconds_left(self) -> float | None:
        """At that rate; None when it is not known, or nothing comes."""
        left = max(self.total_bytes - self.bytes, 0)
        return left / self.bytes_per_second if self.bytes_per_second else None
