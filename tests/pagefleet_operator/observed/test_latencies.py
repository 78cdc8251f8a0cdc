"""What engines measured: read, subtracted, added up; what is not known is never a zero."""

from dataclasses import replace
from math import inf

from pagefleet_api.runtimes import TRAITS, Runtime
from pagefleet_operator.engines.exposition import parse
from pagefleet_operator.engines.translation import latencies
from pagefleet_operator.facts.histogram import Histogram
from pagefleet_operator.facts.latencies import Latencies, together
from pagefleet_operator.facts.observed import Observed, Pod

NAMES = TRAITS[Runtime.PAGEFLEET].names
TEXT = """
pagefleet_requests_total{outcome="stop"} 6
pagefleet_requests_total{outcome="abort"} 2
pagefleet_requests_total{outcome="error"} 2
pagefleet_time_to_first_token_seconds_bucket{le="0.5"} 6
pagefleet_time_to_first_token_seconds_bucket{le="+Inf"} 8
pagefleet_inter_token_latency_seconds_bucket{le="0.1"} 90
pagefleet_inter_token_latency_seconds_bucket{le="+Inf"} 100
pagefleet_startup_phase_seconds{phase="weights"} 3.5
pagefleet_startup_phase_seconds{phase="import"} 2
"""


def buckets(*counts: float) -> Histogram:
    return Histogram((0.5, inf), counts, 0.0)


def test_clients_that_hung_up_are_no_failures_of_the_engine() -> None:
    read = latencies(parse(TEXT, NAMES.timing_prefixes()), NAMES, restarts=3)
    assert read.ttft == buckets(6, 8)
    assert read.itl == Histogram((0.1, inf), (90, 100), 0.0)
    assert read.weights_s == 3.5
    assert (read.ended, read.failed, read.error_rate, read.restarts) == (10, 2, 0.2, 3)


def test_what_an_engine_does_not_tell_is_not_zero() -> None:
    read = latencies(parse(""), NAMES, restarts=0)
    assert read == Latencies(None, None, None, None)
    assert read.error_rate is None
    assert Latencies(None, None, 0, 0).error_rate is None


def test_the_same_container_is_subtracted_and_another_one_began_anew() -> None:
    earlier = Latencies(buckets(1, 2), None, 5, 1)
    now = Latencies(buckets(4, 6), buckets(1, 1), 9, 2)
    assert now.minus(earlier) == Latencies(buckets(3, 4), buckets(1, 1), 4, 1)
    assert now.minus(replace(earlier, restarts=1)) == now
    assert earlier.minus(now) == earlier
    assert Latencies(None, None, None, None).minus(earlier) == Latencies(None, None, None, None)


def test_pods_are_added_up_and_one_without_a_series_takes_nothing_away() -> None:
    one, other = Latencies(buckets(1, 2), None, 5, 1), Latencies(buckets(2, 2), buckets(1, 1), None, None)
    assert together([one, other]) == together([other, one]) == Latencies(buckets(3, 4), buckets(1, 1), 5, 1)
    assert together([one, one]).ended == 10
    assert together([]) == Latencies(None, None, None, None)


def test_a_measurement_counts_for_the_container_that_made_it() -> None:
    measured = Latencies(None, None, 1, 0, restarts=1)
    pod = Pod(name="p", uid="p", running=True, restarts=1)
    observed = Observed(pods=(pod,), latencies={"p": measured})
    assert observed.measured(pod) == measured
    assert observed.measured(replace(pod, restarts=2)) is None
    assert observed.measured(replace(pod, running=False)) is None
    assert observed.measured(replace(pod, uid="q")) is None
