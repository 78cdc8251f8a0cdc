"""The engine in this process: what is read from the times of its tokens."""

import pytest

from bench.engine.inprocess import Answer, FewerBlocks, LocalChannel, Run
from bench.engine.offline import Offline
from bench.engine.results import WorkFailed
from bench.engine.workloads import SMALL, Batch
from pagefleet_api.launch import Launch
from pagefleet_engine.wire import Abort, StepReport, TokenEvent


def test_the_step_of_a_full_batch_is_read_while_all_decode() -> None:
    early = Answer([1] * 5, [0.0, 1.0, 2.0, 2.5, 3.0])
    late = Answer([1] * 5, [2.0, 2.5, 3.0, 3.2, 3.4])
    run = Run(3.4, [early, late])
    assert run.full_batch_step_s == pytest.approx(0.5)
    assert run.first_token_s == [0.0, 2.0]
    assert run.tokens == 10


def test_answers_that_never_decode_together_have_no_such_step() -> None:
    assert Run(2.0, [Answer([1], [0.5]), Answer([1, 1], [1.0, 2.0])]).full_batch_step_s == 0.0


def test_a_step_that_comes_out_as_no_time_at_all_is_no_figure() -> None:
    class Even:
        """All batches take it a second."""

        launch, vocab_size = Launch(model="m", device="cpu"), 2048

        def session(self, launch: Launch | None = None) -> "Even":
            return self

        def generate(self, batch: Batch) -> Run:
            return Run(1.0, [Answer([1] * output, [0.5] * output) for output in batch.outputs])

    with pytest.raises(WorkFailed, match=r"other work disturbed the runs: .* \[0.0\] ms"):
        Offline(Even(), SMALL, None, 1).decode(2)  # type: ignore[arg-type]


def test_the_loop_hears_what_was_put_once_and_its_news_are_kept() -> None:
    channel = LocalChannel()
    channel.put([Abort((1,))])
    assert channel.receive(1.0) == [Abort((1,))]
    assert channel.receive(1.0) == []
    channel.send(StepReport())
    channel.send(StepReport(events=(TokenEvent(request_id=1, token_id=7),)))
    assert [event.token_id for _, events in channel.news for event in events] == [7]


def test_a_runner_may_tell_of_fewer_blocks_than_it_has() -> None:
    class Real:
        num_blocks, lookahead = 8, True

    assert (FewerBlocks(Real(), 4).num_blocks, FewerBlocks(Real(), 9).num_blocks) == (4, 8)
    assert FewerBlocks(Real(), 4).lookahead
