"""The whole engine over a device that computes nothing."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.pagefleet_engine.server.engine_process import engine


def test_an_engine_that_computes_nothing_answers_says_so_and_keeps_its_pace(tiny: Path) -> None:
    with engine(tiny, "--device", "paced") as running, ThreadPoolExecutor() as pool:
        [model] = running.http.get(f"{running.url}/v1/models").json()["data"]
        assert model["device"] == "paced (computes nothing)"
        ask = {"prompt": "abc", "max_tokens": 40, "seed": 3, "ignore_eos": True}
        answers = list(pool.map(lambda _: running.complete(**ask).json(), range(4)))
        assert [answer["usage"]["completion_tokens"] for answer in answers] == [40] * 4
        assert len({answer["choices"][0]["text"] for answer in answers}) == 1
        assert running.load()["running"] == 0
