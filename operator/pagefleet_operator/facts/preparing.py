"""The containers of ours that bring a model and its adapters before an engine starts. Pure."""

from pagefleet_api import labels

NOT_COPIED = "the model cannot be copied out of the image of model.uri"
COPY_CONTAINERS = frozenset({labels.COPIER_CONTAINER, labels.COPY_CONTAINER})


def fetched_by(container: str) -> str | None:
    """What a container of that name downloads; None for all others."""
    if container.startswith(labels.FETCH_ADAPTER_PREFIX):
        return "an adapter"
    if container == labels.FETCH_DRAFT_CONTAINER:
        return "the draft"
    return "the model" if container == labels.FETCH_CONTAINER else None


def failing(container: str) -> str | None:
    """What does not come about where that container fails; None for the engine itself and others' containers."""
    if (fetched := fetched_by(container)) is not None:
        return f"{fetched} cannot be downloaded"
    return NOT_COPIED if container in COPY_CONTAINERS else None
