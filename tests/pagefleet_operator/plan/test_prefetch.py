"""What is decided about the Job that downloads a model."""

from typing import Any

import pytest

from pagefleet_api.download import DownloadProgress
from pagefleet_api.reasons import Reason
from pagefleet_operator.facts.observed import Pod, PodProblem
from pagefleet_operator.plan.prefetch import Own, Prefetch, Stage, how_far, plan_prefetch, superfluous, together


def job(name: str = "fetch-m", *, owners: tuple[str, ...] = ("a",), digest: str = "d", **more: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name, "uid": f"uid {name}", "annotations": {"pagefleet.io/fetch-digest": digest}}
    references = [{"name": owner, "uid": owner} for owner in owners]
    meta |= {"ownerReferences": references, **more.pop("meta", {})}
    return {"metadata": meta, **more}


def ended(kind: str, **more: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": "True", **more}]}


def planned(live: dict[str, Any] | None, *pods: Pod, owners: tuple[str, ...] = ("a",)) -> Prefetch:
    jobs = [job("fetch-other"), *([] if live is None else [live])]
    return plan_prefetch(job(owners=owners), {"d", "e"}, jobs, pods, {"a", "b"})


def pod(reason: Reason, message: str = "", *, finished: bool = False) -> Pod:
    return Pod(name="p", uid="p", finished=finished, problem=PodProblem(reason, message))


def test_a_model_that_nobody_downloads_gets_a_job() -> None:
    found = planned(None)
    assert (found.stage, found.create, found.remove) == (Stage.FETCHING, job(), ())


def test_a_complete_job_is_a_cached_model() -> None:
    found = planned(job(status=ended("Complete"), digest="of before"))
    assert (found.stage, found.create, found.own, found.remove) == (Stage.CACHED, None, None, ())


def test_a_second_service_shares_the_download() -> None:
    live = job(status=ended("Complete"), owners=("b",))
    found = planned(live)
    assert found.own == Own(live, ({"name": "b", "uid": "b"}, {"name": "a", "uid": "a"}))
    assert planned(job(owners=("b",))).own is not None


def test_a_job_under_way_tells_where_to_look() -> None:
    assert planned(job()).message == "Job fetch-m downloads it; kubectl logs job/fetch-m tells how far"
    assert planned(job(digest="e"), pod(Reason.STARTING)).stage is Stage.FETCHING


def test_a_job_under_way_tells_how_far_it_is_once_it_said_so() -> None:
    told = {"p": DownloadProgress(bytes=3 << 30, total_bytes=12 << 30)}
    found = plan_prefetch(job(), {"d"}, [job()], [pod(Reason.STARTING)], {"a"}, told)
    assert found.message == "Job fetch-m downloads it; 3.0 of 12.0 GiB (25 %)"


@pytest.mark.parametrize(
    ("done", "total", "rate", "words"),
    [
        (3 << 30, 12 << 30, 100 << 20, "3.0 of 12.0 GiB (25 %), 100.0 MiB/s, 2 min left"),
        (0, 2 << 40, 100 << 20, "0.0 of 2048.0 GiB (0 %), 100.0 MiB/s, 5 h 50 min left"),
        (0, 100 << 20, 1 << 20, "0.0 of 100.0 MiB (0 %), 1.0 MiB/s, 2 min left"),
        (99 << 20, 100 << 20, 1 << 20, "99.0 of 100.0 MiB (99 %), 1.0 MiB/s, 1 s left"),
        (5, 10, 0, "5 of 10 bytes (50 %), nothing comes at the moment"),
        (10, 0, None, "10 of 0 bytes (100 %)"),
        (5 << 30, None, 50 << 20, "5.0 GiB so far, 50.0 MiB/s"),
        (5, None, 0, "5 bytes so far, nothing comes at the moment"),
    ],
)
def test_how_far_a_download_is_in_words(done: int, total: int | None, rate: int | None, words: str) -> None:
    assert how_far(DownloadProgress(bytes=done, total_bytes=total, bytes_per_second=rate)) == words


def test_a_failing_job_says_why() -> None:
    found = planned(job(), pod(Reason.STARTING), pod(Reason.MODEL_FETCH_FAILED, "HTTP 401"))
    assert (found.stage, found.message) == (Stage.FAILING, "Job fetch-m: HTTP 401")
    assert planned(job(), pod(Reason.MODEL_FETCH_FAILED, finished=True)).stage is Stage.FETCHING


def test_a_claim_that_does_not_exist_is_a_failure_that_says_what_to_do() -> None:
    found = planned(job(), pod(Reason.MOUNT_FAILED, "the PersistentVolumeClaim m does not exist"))
    assert (found.stage, found.message) == (Stage.FAILING, "Job fetch-m: the PersistentVolumeClaim m does not exist")


def test_a_pod_that_waits_for_its_claim_or_a_node_has_not_failed() -> None:
    found = planned(job(), pod(Reason.UNSCHEDULABLE, "pod has unbound immediate PersistentVolumeClaims"))
    assert found.stage is Stage.FETCHING
    assert "unbound immediate PersistentVolumeClaims" in found.message


@pytest.mark.parametrize("more", [{"message": "too many tries"}, {"reason": "too many tries"}])
def test_a_job_that_gave_up_is_made_anew(more: dict[str, str]) -> None:
    live = job(status=ended("Failed", **more))
    found = planned(live)
    assert (found.stage, found.remove) == (Stage.FAILING, (live,))
    assert "too many tries" in found.message


def test_another_secret_begins_anew_while_the_download_is_not_over() -> None:
    live = job(digest="of before")
    found = planned(live)
    assert (found.stage, found.remove) == (Stage.FETCHING, (live,))


def test_a_job_on_its_way_out_is_waited_for() -> None:
    found = planned(job(meta={"deletionTimestamp": "2026-01-01T00:00:00Z"}))
    assert (found.stage, found.create, found.remove) == (Stage.FETCHING, None, ())


def test_jobs_that_no_service_needs_any_more_go() -> None:
    mine, shared, others = job("old"), job("shared", owners=("a", "b")), job("others", owners=("b",))
    unknown = job("unknown", owners=("a", "of another operator"))
    jobs = [mine, shared, others, unknown]
    assert superfluous("a", {"fetch-m", "shared"}, jobs, {"a", "b"}) == (mine,)


def test_a_download_that_another_operators_service_began_is_shared_as_it_is() -> None:
    found = planned(job(digest="of another operator", owners=("c",)))
    assert (found.stage, found.remove) == (Stage.FETCHING, ())
    assert found.own is not None


def test_of_many_that_are_missing_some_are_told_of_and_the_others_counted() -> None:
    found = {f"adapter a{number}": Prefetch(Stage.FETCHING, f"Job {number}") for number in range(5)}
    found["the model"] = Prefetch(Stage.CACHED, "Job m")
    assert together(found).message == "adapter a0: Job 0; adapter a1: Job 1; adapter a2: Job 2 and 2 more"
