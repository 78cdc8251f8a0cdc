"""Short durations as Kubernetes and Go write them: "500ms", "90s", "2m", "1h30m"."""

import re

PATTERN = r"^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?([0-9]{1,6}ms)?$"
_SYNTAX = re.compile(PATTERN)
_SECONDS = (3600.0, 60.0, 1.0, 0.001)


def parse(text: str) -> float:
    """Seconds. Raises ValueError, naming the text and an example, when it is no duration."""
    match = _SYNTAX.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"{text!r} is not a duration; write whole hours, minutes, seconds, milliseconds such as '90s'")
    parts = zip(match.groups(), _SECONDS, strict=True)
    return sum(int(part.rstrip("hms")) * unit_s for part, unit_s in parts if part is not None)
