import pytest

from pagefleet_api.status import Status
from pagefleet_operator.facts.observed import Observed
from pagefleet_operator.status import worth_writing
from tests.pagefleet_operator.autoscaling.build import SILENT
from tests.pagefleet_operator.plan.build import observed, pod
from tests.pagefleet_operator.status.build import at, fleet, outcome, ready, service, status

PODS = fleet(ready(1, 5), ready(0, 7))
SEEN = observed(pod("a"), pod("b"))


def scaled(waiting: int, running: int, *, now_s: float = 0.0, previous: Status | None = None) -> Status:
    pods = fleet(ready(waiting, running), ready(0, 7))
    return status(SEEN, 2, scaled=outcome(pods, now_s=now_s), previous=previous, now=at(now_s))


def test_the_same_again_is_not_written_however_late() -> None:
    old = scaled(1, 5)
    assert not worth_writing(old, scaled(1, 5, now_s=3000, previous=old), at(3000))
    fixed = status(SEEN, 2)
    assert not worth_writing(fixed, status(SEEN, 2, previous=fixed, now=at(3000)), at(3000))


def test_inputs_that_move_wait_for_their_minute() -> None:
    old = scaled(1, 5)
    assert not worth_writing(old, scaled(2, 6, now_s=59, previous=old), at(59))
    assert worth_writing(old, scaled(2, 6, now_s=60, previous=old), at(60))


def test_the_first_status_and_the_first_decision_are_written() -> None:
    assert worth_writing(Status(), status(Observed(), 1), at(0))
    fixed = status(SEEN, 2)
    assert worth_writing(fixed, scaled(1, 5, previous=fixed), at(1))


def test_targets_without_a_decision_time_are_written() -> None:
    old = Status(targets="queue 1/4")
    assert worth_writing(old, Status(targets="queue 2/4"), at(0))


@pytest.mark.parametrize(
    "new",
    [
        pytest.param(scaled(40, 8, now_s=1), id="the number"),
        pytest.param(status(SEEN, 2, scaled=outcome(fleet(ready(1, 5), SILENT), now_s=1), now=at(1)), id="the reason"),
        pytest.param(status(observed(pod("a")), 2, scaled=outcome(PODS)), id="a count"),
        pytest.param(
            status(
                SEEN, 2, of=service(4, autoscaling={"maxReplicas": 6}), scaled=outcome(fleet(ready(1, 5), ready(0, 7)))
            ),
            id="the generation",
        ),
    ],
)
def test_what_a_reader_acts_on_is_written_at_once(new: Status) -> None:
    assert worth_writing(scaled(1, 5), new, at(1))


def test_a_clamp_with_other_numbers_is_the_same_clamp() -> None:
    old = scaled(1, 5)
    assert old.autoscaling is not None and old.autoscaling.last_decision is not None

    def clamped(words: str) -> Status:
        assert old.autoscaling is not None and old.autoscaling.last_decision is not None
        decision = old.autoscaling.last_decision.model_copy(update={"clamps": (words,)})
        return old.model_copy(update={"autoscaling": old.autoscaling.model_copy(update={"last_decision": decision})})

    assert not worth_writing(clamped("Stabilized: 1 → 3, x"), clamped("Stabilized: 2 → 3, x"), at(1))
    assert worth_writing(clamped("Stabilized: 1 → 3, x"), clamped("TooManyReplicas: 9 → 6, x"), at(1))
