"""The bench of the API process counts right."""

from bench.api import Work, measure


def test_every_answer_is_counted() -> None:
    work = Work(clients=3, rounds=2, prompt_tokens=20, answer_tokens=5, step_ms=1.0, endpoint="completions")
    row = measure(work)
    assert (row["tokens"], row["failures"], row["first_failure"]) == (30, 0, [])
    assert isinstance(row["first_token_p50_ms"], float)
