"""How a change on trial goes on, phase by phase, from what is seen and the time alone."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pagefleet_api.reasons import EventReason, Reason
from pagefleet_api.service import Rollout
from pagefleet_operator.facts.latencies import Latencies
from pagefleet_operator.facts.observed import DeploymentView, Generation, Observed, Pod, PodProblem, Progress
from pagefleet_operator.facts.trials import Phase, Trial
from pagefleet_operator.plan.comparison import Measured
from pagefleet_operator.plan.rollout import RollingUpdate, rolling_update
from pagefleet_operator.plan.trial import Course, Shape, advance, baseline, measured_since, on_trial, shape
from tests.pagefleet_operator.plan.build import NOW, at, pod
from tests.pagefleet_operator.plan.test_comparison import NOTHING, answers

RULES = Rollout.model_validate({"analysis": {"trafficPercent": 25, "holdSeconds": 100}})
ALIKE, SLOWER = Measured(answers(), answers()), Measured(answers(), answers(ttft_s=1.6))


def trial(phase: Phase = Phase.MEASURING, *, age_s: float = 0, **changes: Any) -> Trial:
    base = Trial(phase=phase, since=NOW.wall - timedelta(seconds=age_s), stable="one", pods=1)
    return replace(base, **changes)


def fresh(name: str = "new", **changes: Any) -> Pod:
    return pod(name, template_hash="two", **changes)


def seen(*pods: Pod, on: Trial | None = None, revision: int | None = 2, **changes: Any) -> Observed:
    """Generations "one" and "two" under a Deployment of template digest "b"."""
    view = DeploymentView(name="d", revision=revision, template="b", trial=on, total=4, updated=1)
    generations = (Generation("d", "one", 1, {}), Generation("d", "two", 2, {}))
    return Observed(deployment=replace(view, **changes), pods=pods, generations=generations)


OLD = tuple(pod(name) for name in ("x", "y", "z"))


def go(observed: Observed, *, asked: str = "b", rules: Rollout = RULES, wanted: int = 3, **more: Any) -> Course:
    return advance(rules, asked, wanted, observed, more.get("measured"), NOW)


def reasons(course: Course) -> list[EventReason]:
    return [news.reason for news in course.news]


def test_a_change_of_the_template_begins_a_trial_beside_the_generation_that_serves() -> None:
    course = go(seen(*OLD), asked="c")
    assert course.trial == trial(Phase.STARTING)
    assert [news.message for news in course.news] == ["1 pod of the new template beside 3 for 100 s"]


@pytest.mark.parametrize(
    ("wanted", "percent", "pods"), [(1, 10, 1), (9, 10, 1), (20, 10, 2), (3, 50, 3), (100, 1, 1), (1, 50, 1)]
)
def test_the_new_generations_share_of_the_pods_is_the_nearest_to_its_share_of_the_traffic(
    wanted: int, percent: int, pods: int
) -> None:
    rules = Rollout.model_validate({"analysis": {"trafficPercent": percent}})
    course = go(seen(*OLD), asked="c", rules=rules, wanted=wanted)
    assert course.trial is not None
    assert course.trial.pods == pods


@pytest.mark.parametrize(
    ("observed", "rules", "wanted"),
    [
        pytest.param(Observed(), RULES, 3, id="the first apply"),
        pytest.param(seen(*OLD), Rollout(), 3, id="no analysis asked for"),
        pytest.param(seen(*OLD), RULES, 0, id="paused"),
        pytest.param(seen(*OLD, template=None), RULES, 3, id="a Deployment that tells no digest"),
        pytest.param(seen(pod("x", ready=False)), RULES, 3, id="nobody serves"),
        pytest.param(replace(seen(*OLD), generations=()), RULES, 3, id="no generation is known"),
    ],
)
def test_without_a_comparison_the_change_goes_everywhere_at_once(
    observed: Observed, rules: Rollout, wanted: int
) -> None:
    assert go(observed, asked="c", rules=rules, wanted=wanted) == Course(None)


def test_a_change_during_a_trial_is_compared_with_the_same_earlier_generation() -> None:
    for phase in Phase:
        course = go(seen(*OLD, fresh(), fresh("new2"), fresh("new3"), fresh("new4"), on=trial(phase)), asked="c")
        assert course.trial == trial(Phase.STARTING)


def test_an_earlier_generation_is_the_one_that_serves_most() -> None:
    course = go(seen(pod("x"), fresh(), fresh("new2")), asked="c")
    assert course.trial is not None
    assert course.trial.stable == "two"


def test_without_surge_new_pods_take_the_place_of_older_ones_unless_these_are_all() -> None:
    rules = Rollout.model_validate({"maxSurge": 0, "analysis": {}})
    course = go(seen(*OLD), asked="c", rules=rules)
    assert course.trial == trial(Phase.STARTING, replaces=True)
    assert reasons(go(seen(*OLD), asked="c", rules=rules, wanted=1)) == [EventReason.TRIAL_SKIPPED]


UNPLACED = PodProblem(Reason.UNSCHEDULABLE, "no GPU", NOW.wall - timedelta(seconds=60))
WAITING = fresh(ready=False, started=False, created=NOW.wall, problem=UNPLACED)
LATE = Progress("False", "ProgressDeadlineExceeded", "has timed out progressing")
STARTING = trial(Phase.STARTING)


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(seen(*OLD, on=STARTING), STARTING, id="no new pod yet"),
        pytest.param(seen(*OLD, fresh(ready=False), on=STARTING), STARTING, id="not ready yet"),
        pytest.param(seen(*OLD, fresh(), on=STARTING), trial(Phase.MEASURING), id="ready"),
        pytest.param(seen(*OLD, fresh(), on=STARTING, generation=9), STARTING, id="the controller lags"),
        pytest.param(seen(*OLD, fresh(), on=STARTING, revision=3), STARTING, id="its ReplicaSet is not seen yet"),
        pytest.param(seen(*OLD, fresh(), on=STARTING, revision=None), STARTING, id="no revision yet"),
        pytest.param(seen(*OLD, WAITING, on=STARTING), replace(STARTING, replaces=True), id="no room beside"),
        pytest.param(
            seen(*OLD, WAITING, on=replace(STARTING, replaces=True)), replace(STARTING, replaces=True), id="still none"
        ),
    ],
)
def test_new_pods_start_and_are_compared_once_they_are_ready(observed: Observed, expected: Trial) -> None:
    assert go(observed) == Course(expected)


def test_a_single_pod_without_room_for_another_is_rolled_out_without_a_trial_and_that_is_said() -> None:
    course = go(seen(pod("x"), WAITING, on=STARTING), wanted=1)
    assert (course.trial, reasons(course)) == (None, [EventReason.TRIAL_SKIPPED])


def test_new_pods_that_do_not_start_in_time_are_taken_back() -> None:
    course = go(seen(*OLD, fresh(ready=False), on=STARTING, progressing=LATE))
    assert course.trial == trial(
        Phase.ROLLED_BACK, reason=Reason.PROGRESS_DEADLINE_EXCEEDED, words="has timed out progressing"
    )
    assert reasons(course) == [EventReason.ROLLED_BACK]


def test_a_change_that_is_taken_back_ends_its_trial() -> None:
    for phase in (Phase.STARTING, Phase.MEASURING):
        assert go(seen(*OLD, fresh(), on=trial(phase), revision=1)) == Course(None)


def test_without_any_earlier_pod_that_runs_there_is_nothing_to_compare() -> None:
    course = go(seen(pod("x", ready=False, started=False), fresh(), on=trial()))
    assert (course.trial, reasons(course)) == (None, [EventReason.TRIAL_SKIPPED])
    blinking = seen(pod("x", ready=False), fresh(), on=trial())
    assert go(blinking).trial == trial()


BROKEN = PodProblem(Reason.CRASH_LOOP, "exit code 1")


@pytest.mark.parametrize(
    ("age_s", "measured", "ends", "said"),
    [
        pytest.param(99, ALIKE, None, [], id="good so far"),
        pytest.param(100, ALIKE, "passed", [EventReason.TRIAL_PASSED], id="good for the whole time"),
        pytest.param(5, SLOWER, "back", [EventReason.ROLLED_BACK], id="much worse at once"),
        pytest.param(399, Measured(answers(), answers(3)), None, [], id="too few requests"),
        pytest.param(
            400, Measured(answers(), answers(3)), "passed", [EventReason.TRIAL_INCONCLUSIVE], id="for too long"
        ),
        pytest.param(399, None, None, [], id="nothing measured"),
        pytest.param(400, None, "passed", [EventReason.TRIAL_INCONCLUSIVE], id="nothing measured for too long"),
    ],
)
def test_the_comparison_decides(
    age_s: float, measured: Measured | None, ends: str | None, said: list[EventReason]
) -> None:
    course = go(seen(*OLD, fresh(), on=trial(age_s=age_s)), measured=measured)
    assert reasons(course) == said
    if ends is None:
        assert course.trial == trial(age_s=age_s)
    elif ends == "passed":
        assert course.trial is None
    else:
        assert course.trial is not None
        assert (course.trial.phase, course.trial.reason) == (Phase.ROLLED_BACK, Reason.SLO_REGRESSION)
        assert "against" in course.trial.words


def test_a_new_pod_that_crashes_under_load_is_a_regression() -> None:
    crashed = fresh(ready=False, problem=BROKEN)
    course = go(seen(*OLD, crashed, on=trial()), measured=ALIKE)
    assert course.trial is not None
    assert course.trial.words == "new: exit code 1"
    unready = fresh(ready=False, problem=PodProblem(Reason.ENGINE_UNREADY, "slow"))
    assert go(seen(*OLD, unready, on=trial()), measured=ALIKE).trial == trial()


def test_the_requests_that_count_so_far_are_those_of_the_generation_that_had_fewer() -> None:
    few = Measured(answers(57), answers(24))
    assert go(seen(*OLD, fresh(), on=trial()), measured=few).requests == 24
    assert go(seen(*OLD, fresh(), on=trial())).requests == 0
    assert go(seen(*OLD, on=trial(Phase.STARTING)), measured=few).requests is None


def test_what_was_taken_back_stays_so_until_the_template_changes_or_nobody_asks_for_an_analysis() -> None:
    back = trial(Phase.ROLLED_BACK, reason=Reason.SLO_REGRESSION)
    assert go(seen(*OLD, on=back, revision=1)) == Course(back)
    assert go(seen(on=back), wanted=0) == Course(back), "a pause is no change"
    assert go(seen(*OLD, on=trial()), wanted=0) == Course(None)
    assert go(seen(*OLD, on=back), rules=Rollout()) == Course(None)


PLAIN = RollingUpdate(1, 0)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, Shape(PLAIN)),
        (trial(Phase.STARTING, pods=2), Shape(RollingUpdate(2, 0), min_ready_s=600)),
        (trial(Phase.STARTING, replaces=True), Shape(RollingUpdate(0, 1), min_ready_s=600)),
        (trial(pods=2), Shape(RollingUpdate(0, 2), extra=2, paused=True, min_ready_s=600)),
        (trial(replaces=True), Shape(RollingUpdate(0, 1), paused=True, min_ready_s=600)),
        (trial(Phase.ROLLED_BACK, pods=2), Shape(RollingUpdate(2, 0), pinned="one")),
        (trial(Phase.ROLLED_BACK, replaces=True), Shape(RollingUpdate(0, 1), pinned="one")),
    ],
)
def test_what_a_trial_makes_of_the_deployment(state: Trial | None, expected: Shape) -> None:
    assert shape(Course(state), PLAIN, RULES) == expected


def test_pods_are_held_back_for_less_than_the_deadline() -> None:
    assert shape(Course(STARTING), PLAIN, Rollout(progress_deadline_seconds=60)).min_ready_s == 59
    assert shape(Course(STARTING), PLAIN, Rollout(progress_deadline_seconds=1)).min_ready_s == 0


def test_after_a_trial_the_strategy_is_what_the_room_allows_and_not_what_the_trial_had() -> None:
    for replaces, expected in ((False, (1, 0)), (True, (0, 1))):
        observed = seen(*OLD, fresh(), on=trial(replaces=replaces), max_surge="0", max_unavailable="1")
        assert rolling_update(RULES, observed, at(0)) == expected


def test_only_what_was_measured_since_the_comparison_began_counts() -> None:
    pods = (*OLD[:2], fresh(), fresh("late"))
    observed = replace(seen(*pods, on=trial()), latencies={"x": answers(100), "new": answers(5)})
    start = baseline({}, observed)
    assert set(start) == {"x", "new"}
    later = {"x": answers(150), "y": answers(7), "new": answers(25), "late": answers(4)}
    observed = replace(observed, latencies=later)
    found = measured_since(start, observed)
    assert found is not None
    assert (found.stable.ended, found.fresh.ended) == (57, 24)
    assert baseline(start, observed) == {**start, "y": answers(7), "late": answers(4)}
    assert baseline(start, replace(observed, pods=(fresh(),))) == {"new": answers(5)}


def test_nothing_is_measured_without_a_trial_or_its_generation() -> None:
    assert measured_since({}, Observed()) is None
    assert measured_since({}, seen(*OLD)) is None
    assert measured_since({}, seen(*OLD, on=trial(), revision=7)) is None
    assert measured_since({}, seen(*OLD, on=trial())) == Measured(NOTHING, NOTHING)
    assert [on_trial(seen(on=each)) for each in (None, STARTING, trial())] == [False, False, True]
    assert not on_trial(Observed())
    assert isinstance(NOTHING, Latencies)
