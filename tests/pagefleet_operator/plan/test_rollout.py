from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_api.reasons import Reason
from pagefleet_api.service import Rollout
from pagefleet_operator.facts.observed import DeploymentView, Observed, Pod, PodProblem
from pagefleet_operator.plan.rollout import rolling_update
from tests.pagefleet_operator.plan.build import NOW, pod
from tests.pagefleet_operator.plan.lagging_controller import Rolling


def waiting(seconds: float, **changes: object) -> Pod:
    """A new pod that the scheduler has not placed for `seconds`."""
    since = NOW.wall - timedelta(seconds=seconds)
    problem = PodProblem(Reason.UNSCHEDULABLE, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", since)
    base = pod("new", ready=False, started=False, created=since, template_hash="two", problem=problem)
    return replace(base, **changes)  # type: ignore[arg-type]


def rolling(*pods: Pod, live: tuple[str, str] = ("1", "0"), rollout: bool = True) -> Observed:
    view = DeploymentView(
        name="d", total=len(pods), updated=0 if rollout else len(pods), max_surge=live[0], max_unavailable=live[1]
    )
    return Observed(view, pods)


def lagging(*pods: Pod, live: tuple[str, str]) -> Observed:
    """The controller has not looked at the latest write yet."""
    seen = rolling(*pods, live=live, rollout=False)
    assert seen.deployment is not None
    return replace(seen, deployment=replace(seen.deployment, generation=7, observed_generation=6))


IDLE = Observed()
TRYING = rolling(pod("old"), waiting(59))
FULL = rolling(pod("old"), waiting(60))
AFTER_TRIAL = rolling(pod("old"), live=("0", "1"))
ENDED = rolling(pod("new"), live=("0", "1"), rollout=False)


@pytest.mark.parametrize(
    ("surge", "unavailable", "seen", "expected"),
    [
        pytest.param("Auto", "Auto", IDLE, (1, 0), id="surge first"),
        pytest.param("Auto", "Auto", TRYING, (1, 0), id="the scheduler gets a minute"),
        pytest.param("Auto", "Auto", FULL, (0, 1), id="a full node cannot surge"),
        pytest.param("Auto", "Auto", AFTER_TRIAL, (0, 1), id="sticky until the roll-out ends"),
        pytest.param("Auto", "Auto", ENDED, (1, 0), id="the next roll-out tries again"),
        pytest.param("Auto", "0", FULL, (1, 0), id="never both 0"),
        pytest.param("Auto", "0%", FULL, (1, "0%"), id="never both 0, in percent"),
        pytest.param("Auto", "25%", IDLE, (1, "25%"), id="explicit unavailable"),
        pytest.param("Auto", "25%", FULL, (0, "25%"), id="explicit unavailable on a full node"),
        pytest.param("0", "Auto", IDLE, (0, 1), id="no surge wanted"),
        pytest.param("2", "Auto", IDLE, (2, 0), id="explicit surge"),
        pytest.param("2", "Auto", FULL, (2, 1), id="explicit surge on a full node"),
        pytest.param("2", "Auto", rolling(pod("old"), live=("2", "1")), (2, 1), id="explicit surge after the trial"),
        pytest.param("50%", "3", FULL, ("50%", 3), id="both explicit"),
        pytest.param("Auto", "Auto", rolling(pod("old"), waiting(90), rollout=False), (1, 0), id="no roll-out"),
        pytest.param(
            "Auto",
            "Auto",
            rolling(waiting(90, name="old", template_hash="one"), waiting(5)),
            (1, 0),
            id="an old pod that waits is no trial",
        ),
        pytest.param("Auto", "Auto", rolling(waiting(90, terminating=True)), (1, 0), id="a pod that is gone"),
        pytest.param("Auto", "Auto", lagging(waiting(90), live=("1", "0")), (1, 0), id="no trial before that"),
        pytest.param("Auto", "Auto", lagging(pod("new"), live=("0", "1")), (0, 1), id="no end before that"),
    ],
)
def test_surge_and_unavailable(
    surge: str, unavailable: str, seen: Observed, expected: tuple[int | str, int | str]
) -> None:
    assert rolling_update(Rollout(max_surge=surge, max_unavailable=unavailable), seen, NOW) == expected


def test_a_trial_without_times_has_just_begun() -> None:
    problem = PodProblem(Reason.UNSCHEDULABLE, "no room")
    seen = rolling(pod("old", created=None), pod("new", ready=False, created=None, problem=problem))
    assert rolling_update(Rollout(), seen, NOW) == (1, 0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    replicas=st.integers(1, 4),
    room=st.integers(1, 6),
    live=st.sampled_from([("1", "0"), ("0", "1"), ("2", "2")]),
    changes=st.lists(st.tuples(st.none() | st.integers(1, 5), st.booleans()), max_size=4),
)
def test_a_strategy_comes_to_rest_whatever_the_controllers_lag(
    seed: int, replicas: int, room: int, live: tuple[str, str], changes: list[tuple[int | None, bool]]
) -> None:
    world = Rolling(seed, replicas=replicas, room=room, live=live)
    for number, template in changes:
        for _ in range(world.dice.randint(0, 12)):
            world.step()
        world.change(replicas=number, new_template=template)
    before = world.strategy_writes
    for _ in range(200):
        world.step()
    assert world.strategy_writes - before <= 3
    if world.rolled_out:
        assert (world.surge, world.unavailable) == ("1", "0")
    assert world.rolled_out or world.room < world.replicas


@pytest.mark.parametrize("seed", range(5))
def test_a_scale_up_on_a_full_cluster_never_touches_the_strategy(seed: int) -> None:
    world = Rolling(seed, replicas=2, room=2, live=("1", "0"))
    for _ in range(10):
        world.step()
    for number in (4, 6, 3, 5):
        world.change(replicas=number)
        for _ in range(30):
            world.step()
    assert world.strategy_writes == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_roll_out_on_a_full_cluster_takes_two_writes_and_ends_as_it_began(seed: int) -> None:
    world = Rolling(seed, replicas=2, room=2, live=("1", "0"))
    for _ in range(10):
        world.step()
    world.change(new_template=True)
    for _ in range(100):
        world.step()
    assert world.rolled_out
    assert (world.strategy_writes, world.surge, world.unavailable) == (2, "1", "0")
