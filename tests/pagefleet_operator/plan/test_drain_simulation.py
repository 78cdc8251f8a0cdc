from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_operator.facts.observed import Observed
from pagefleet_operator.plan.replicas import ReplicaPlan
from tests.pagefleet_operator.plan.replica_set import Cluster

numbers = st.lists(st.integers(0, 6), min_size=1, max_size=5)


def sound_leave_before_dead(steps: ReplicaPlan, seen: Observed) -> bool:
    """A pod that serves is to go while one in which nothing runs stays."""
    going = {order.pod.uid for order in steps.drain}
    dead = [pod for pod in seen.pods if pod.serving and not pod.running and pod.uid not in going]
    return bool(dead) and any(order.pod.ready for order in steps.drain)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), wanted=numbers, restarts=st.booleans(), cut_share=st.sampled_from([0.0, 0.1, 0.6]))
def test_whatever_happens_the_number_is_reached_and_no_answer_is_cut(
    seed: int, wanted: list[int], restarts: bool, cut_share: float
) -> None:
    cluster = Cluster(seed, wanted[0])
    cluster.cut_share = cut_share
    for number in wanted:
        cluster.wanted = number
        for _ in range(cluster.dice.randint(1, 60)):
            there = len(cluster.engines)
            steps = cluster.step()
            assert steps.deployment_replicas <= max(number, there), "a drain must not make pods"
            assert all(over.aborted == 0 for over in steps.release)
            assert not sound_leave_before_dead(steps, cluster.seen)
            if restarts and cluster.dice.random() < 0.05:
                cluster.lose_samples()
    cluster.trouble, cluster.arrivals_per_s = False, 0.3
    for _ in range(200):
        cluster.step()
    assert cluster.replicas == cluster.wanted == len(cluster.engines)
    assert all(engine.ready(cluster.now_s) and engine.serving for engine in cluster.engines)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), before=st.integers(2, 6), after=st.integers(1, 5))
def test_on_the_way_down_the_wanted_number_serves_all_the_time(seed: int, before: int, after: int) -> None:
    cluster = Cluster(seed, before)
    cluster.trouble = False
    for _ in range(60):
        cluster.step()
    cluster.wanted = min(after, before)
    for _ in range(200):
        cluster.step()
        assert sum(engine.ready(cluster.now_s) and engine.serving for engine in cluster.engines) >= cluster.wanted
    assert cluster.left_to_sigterm == 0
    assert len(cluster.engines) == cluster.wanted
    assert cluster.made == before
