"""Why a model could not be fetched: one type for each thing that somebody can do about it."""


class FetchError(Exception):
    """A model that is not there; the text is one line that names the URI, what happened and the way out."""


class Denied(FetchError):
    """The source refuses us: a credential is missing, wrong or not accepted for this model."""


class Missing(FetchError):
    """There is no such model, revision or file at the source."""


class Unusable(FetchError):
    """What the source has is not a model that an engine could load, or is broken there."""


class NoSpace(FetchError):
    """The files do not fit on the disk, or into the cache's limit."""


class Occupied(FetchError):
    """The folder holds something else."""


class Unavailable(FetchError):
    """The source did not answer, or not to the end. Worth another try, not before `after_s` where it says so."""

    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class TooSlow(FetchError):
    """Bytes come, but so few that the model would never be there. Worth another try from where it was."""


class Corrupt(FetchError):
    """Bytes arrived that are not the published ones. Worth another try from the start."""


EXIT_STATUS: dict[type[FetchError], int] = {
    Denied: 3,
    Missing: 4,
    Unusable: 5,
    NoSpace: 6,
    Occupied: 7,
    Unavailable: 8,
    Corrupt: 9,
    TooSlow: 10,
}
"""Of the program; 0 is a model that is there, 2 a wrong command line."""
