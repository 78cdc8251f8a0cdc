"""Which stories are told one after another, and which at the same time. Pure.

A lane is told by one process. Every file has a namespace, devices and, where it needs them, a node and an operator of
its own, so that lanes are free of each other but for the machine's two cores.
"""

from collections.abc import Mapping, Sequence

LANES: Mapping[str, Sequence[str]] = {
    # engines that compute, as fast as they can
    "engines": (
        "test_story_autoscale",
        "test_story_pod_killed",
        "test_story_apply_chat_delete",
        "test_story_scale_and_refuse",
    ),
    # what mostly waits for periods of time
    "changes": ("test_story_gpu_tight_update", "test_story_rollout", "test_story_model_image"),
    # what counts nodes, with the stories in which one takes no pods, or a third one comes and goes
    "places": (
        "test_story_node_drain",
        "test_story_gpu_placement",
        "test_story_node_cache",
        "test_story_causes",  # it has seconds to meet: when the engines that compute are through
    ),
    "others": ("test_story_operator_restart", "test_story_drain", "test_story_model_download", "test_cluster"),
}

_PLACES = {
    file: (number, place, lane)
    for number, (lane, files) in enumerate(LANES.items())
    for place, file in enumerate(files)
}


def lane(file: str) -> str:
    """The lane of a file of stories, by its name without `.py`; one that is not listed has a lane of its own."""
    return _PLACES[file][2] if file in _PLACES else file


def order(file: str) -> tuple[int, int]:
    """Files are told in this order within their lane, and all lanes in this one where there is one process."""
    number, place, _ = _PLACES.get(file, (len(LANES), 0, file))
    return number, place
