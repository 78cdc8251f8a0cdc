from dataclasses import replace
from datetime import timedelta

import pytest

from pagefleet_api.reasons import Reason
from pagefleet_operator.facts.observed import Evidence, Pod, PodProblem, Room, Warned
from pagefleet_operator.status.causes import refusal, told
from tests.pagefleet_operator.plan.build import START, pod

GPU = "nvidia.com/gpu"
ROOM = Evidence(room=Room(resource=GPU, free_by_node={"n1": 1, "n2": 2}, allocatable=16))


def sick(name: str, reason: Reason, words: str = "words", **more: object) -> Pod:
    return pod(name, ready=False, problem=PodProblem(reason, words), **more)


def words(*pods: Pod, evidence: Evidence | None = None) -> tuple[str, str]:
    verdict = told(pods, evidence or Evidence())
    assert verdict is not None and not verdict.status
    return verdict.reason, verdict.message


def test_sound_pods_have_no_cause() -> None:
    assert told([pod("a")], Evidence()) is None
    assert told([], Evidence()) is None


def test_the_commonest_cause_comes_first_and_each_has_its_number() -> None:
    pods = [sick("a", Reason.OUT_OF_MEMORY), sick("c", Reason.UNSCHEDULABLE), sick("b", Reason.UNSCHEDULABLE, "full")]
    assert words(*pods) == ("Unschedulable", "b: full (2 pods); a: words")


def test_of_equally_common_causes_the_gravest_comes_first() -> None:
    pods = [sick("a", Reason.NODE_LOST), sick("b", Reason.CRASH_LOOP), sick("c", Reason.IMAGE_PULL_FAILED)]
    assert words(*pods) == ("CrashLoop", "b: words; c: words; a: words")


def test_pods_that_only_start_hide_no_cause_however_many_they_are() -> None:
    starting = [sick(name, Reason.STARTING, "the engine loads the model") for name in "abc"]
    assert words(*starting, sick("d", Reason.CRASH_LOOP)) == ("CrashLoop", "d: words")
    assert words(*starting) == ("Starting", "a: the engine loads the model (3 pods)")


def test_a_crash_that_a_probe_brought_about_says_so() -> None:
    crashed = sick("a", Reason.CRASH_LOOP, "exit code 0, 1 restart")
    killed = Evidence(kills={"a": "Container engine failed startup probe"})
    assert words(crashed)[1] == "a: exit code 0, 1 restart"
    assert words(crashed, evidence=killed)[1].endswith("; the kubelet ended it: Container engine failed startup probe")


def test_not_every_cause_of_many_is_told() -> None:
    kinds = (Reason.OUT_OF_MEMORY, Reason.CRASH_LOOP, Reason.IMAGE_PULL_FAILED, Reason.NODE_LOST)
    assert words(*(sick(kind.value, kind) for kind in kinds))[1].count(";") == 2


def test_who_waits_for_gpus_is_told_how_many_are_free() -> None:
    waits = sick(
        "a", Reason.UNSCHEDULABLE, "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", extended={GPU: 4}
    )
    assert words(waits, evidence=ROOM)[1] == (
        "a: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu.; "
        "it needs 4 nvidia.com/gpu: 2 free on the node with most left, 3 of 16 on all nodes"
    )


def test_what_no_node_has_is_told_as_such() -> None:
    waits = sick("a", Reason.UNSCHEDULABLE, "full", extended={GPU: 4})
    none = Evidence(room=Room(resource=GPU))
    assert words(waits, evidence=none)[1] == "a: full; it needs 4 nvidia.com/gpu, which no node has"


def test_without_a_look_at_the_nodes_the_schedulers_words_stand_alone() -> None:
    waits = sick("a", Reason.UNSCHEDULABLE, "0/2 nodes are available", extended={GPU: 4})
    assert words(waits)[1] == "a: 0/2 nodes are available"
    assert words(replace(waits, extended={}), evidence=ROOM)[1] == "a: 0/2 nodes are available"


@pytest.mark.parametrize(("times", "said"), [(1, "tried once so far"), (4, "tried at least 4 times")])
def test_an_image_that_does_not_come_is_told_with_the_tries(times: int, said: str) -> None:
    pulling = sick("a", Reason.IMAGE_PULL_FAILED, "cannot pull x: not found")
    assert words(pulling)[1] == "a: cannot pull x: not found"
    assert words(pulling, evidence=Evidence(pulls={"a": times}))[1] == f"a: cannot pull x: not found ({said})"


@pytest.mark.parametrize(
    ("warned", "reason"),
    [
        (Warned("FailedMount", 'MountVolume.SetUp failed for volume "t" : configmap "t" not found'), "ConfigMissing"),
        (Warned("FailedMount", "references non-existent config key: k"), "ConfigMissing"),
        (Warned("FailedMount", "failed to sync configmap cache: timed out waiting for the condition"), "Starting"),
        (Warned("FailedAttachVolume", "the disk is attached elsewhere"), "MountFailed"),
        (Warned("FailedCreatePodSandBox", "no addresses left"), "EngineUnready"),
    ],
)
def test_what_hinders_a_container_from_being_made_is_told_in_the_kubelets_words(warned: Warned, reason: str) -> None:
    creating = sick("a", Reason.STARTING, "the container is being created", creating=START)
    found = Evidence(warnings={"a": warned})
    assert words(creating, evidence=found) == (reason, f"a: {warned.reason}: {warned.message}")
    assert words(replace(creating, creating=None), evidence=found)[0] == "Starting"


@pytest.mark.parametrize(
    ("said", "reason", "message"),
    [
        ('pods "a-1" is forbidden: exceeded quota: q, used: x', "QuotaExceeded", "exceeded quota: q, used: x"),
        ('admission webhook "w" denied the request: no', "AdmissionDenied", None),
        ("ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", "AdmissionDenied", None),
        ('Internal error occurred: failed calling webhook "w": refused', "AdmissionDenied", None),
        (
            'pods "a-2" is forbidden: violates PodSecurity "restricted"',
            "AdmissionDenied",
            'violates PodSecurity "restricted"',
        ),
        (
            'pods "a-3" is forbidden: error looking up service account n/s: serviceaccount "s" not found',
            "ServiceAccountMissing",
            'error looking up service account n/s: serviceaccount "s" not found',
        ),
        ("services is forbidden: User cannot", "ApplyFailed", None),
    ],
)
def test_a_refusal_is_told_by_who_refuses_in_words_that_stay_the_same(
    said: str, reason: str, message: str | None
) -> None:
    assert refusal(said) == (False, reason, message or said)


def test_what_ails_the_pods_of_an_older_template_is_told_only_while_the_latest_have_nothing_to_tell() -> None:
    old = sick("a", Reason.IMAGE_PULL_FAILED, template_hash="one", created=START)
    new = sick("b", Reason.STARTING, template_hash="two", created=START + timedelta(seconds=9))
    assert words(old, new) == ("Starting", "b: words")
    assert words(old, replace(new, problem=None, ready=True)) == ("ImagePullFailed", "a: words")
    assert words(old, replace(new, created=None))[0] == "ImagePullFailed"
