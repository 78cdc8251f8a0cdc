from bench import simulation


def test_a_small_day_is_simulated_in_full() -> None:
    row = simulation.measure(50)
    assert (row["requests"], row["completed"]) == (50, 50)
