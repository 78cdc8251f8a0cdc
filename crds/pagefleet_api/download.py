"""What the fetcher tells of a download: how far it is by `GET /progress` on the admin port of its pod, and why there is
no model by the last line that it prints.
"""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

PATH = "/progress"
LONGEST_WAIT_S = 86400.0
"""What a server asks for beyond it counts as this."""
HELD = "/held"
"""Beside it, of a model that stays held on a node: 200 while it is whole, 404 before."""
Size = Annotated[int, Field(ge=0, le=2**60)]


class DownloadProgress(BaseModel):
    """Bytes that are there, with those of earlier tries; 404 before they are known.

    total_bytes: absent where the source does not tell the size of every file. bytes_per_second: lately; absent until it
    was measured.
    """

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")

    bytes: Size
    total_bytes: Size | None = None
    bytes_per_second: Size | None = None

    @property
    def seconds_left(self) -> float | None:
        """At that rate; None when it is not known, or nothing comes."""
        if self.total_bytes is None or not self.bytes_per_second:
            return None
        return max(self.total_bytes - self.bytes, 0) / self.bytes_per_second


class DownloadFailure(BaseModel):
    """Why there is no model.

    busy: the source may answer another time, not before `after_seconds` where it said so.
    """

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")

    error: str
    busy: bool = False
    after_seconds: float | None = Field(None, ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False)

    def line(self) -> str:
        """As it is printed."""
        return self.model_dump_json(by_alias=True, exclude_none=True)

    @classmethod
    def parse(cls, printed: str) -> Self | None:
        """From all that was printed; None where the last line is no such failure."""
        lines = printed.strip().split("\n")  # not at what else ends a line in Unicode: an error may hold it
        try:
            return cls.model_validate_json(lines[-1])
        except ValidationError:
            return None
