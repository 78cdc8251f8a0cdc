"""The GPU's runner: launches a step behind the one that computes, and reads it when it is done."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
from msgspec import structs

from pagefleet_api.sizing import BLOCK_TOKENS
from pagefleet_engine.kernels.prepare import PackedCounts, StepInputs, keep_sampled, prepare
from pagefleet_engine.kernels.sampling import sample
from pagefleet_engine.runner.cuda import trial
from pagefleet_engine.runner.cuda.attention import AttentionStep
from pagefleet_engine.runner.cuda.chunks import ChunkPlan, attention_chunks
from pagefleet_engine.runner.cuda.decoder import CudaDecoder
from pagefleet_engine.runner.cuda.device import Uploads, clear, require_device, seat_state, step_inputs
from pagefleet_engine.runner.cuda.graphs import SIZE_STEP, DecodeGraphs, batch_sizes, first_sizes
from pagefleet_engine.runner.cuda.late import log_late_kernels
from pagefleet_engine.runner.cuda.orders import Capture, StepOrder
from pagefleet_engine.runner.cuda.packing import Packed, Packer, Seats, is_decode
from pagefleet_engine.runner.cuda.peers import Alone, Peers
from pagefleet_engine.runner.cuda.reading import Launched, Reading, Readings
from pagefleet_engine.runner.cuda.rows import DeviceStep, StepRows
from pagefleet_engine.runner.cuda.segments import SegmentGraphs, first_counts, row_counts
from pagefleet_engine.runner.cuda.special import SpecialRows
from pagefleet_engine.steps import GpuStatus, Pending, Progress, RunnerBroken, SequenceStep, StepPlan, no_progress

log = logging.getLogger(__name__)
_UPLOAD_INTS = 1 << 18
MEMORY_EVERY_STEPS = 1024
"""So often, and while nobody asks for anything, the allocator is asked what it has given out: not in every step, as it
answers with all of its statistics."""


class CudaRunner:
    """Computes step plans (`steps.Runner`). Not thread-safe: one loop owns it.

    Everything that a step reads or writes on the device is touched in the order of launches, on one stream; so a
    block may get a new owner while a step that still writes to it for its last owner is in flight.
    """

    lookahead = True

    def __init__(
        self, decoder: CudaDecoder, num_blocks: int, *, max_num_seqs: int, max_batch_tokens: int, max_blocks: int,
        graphs: bool, peers: Peers | None = None,
    ) -> None:  # fmt: skip
        """Takes the decoder over, and makes its KV memory when it has none of that size yet.

        With `peers` the decoder is one rank's part: the first rank's runner launches, the others' `follow`.
        """
        self._decoder, self._num_blocks = decoder, num_blocks
        self._peers = peers or Alone()
        self._device = decoder.device
        self._max_num_seqs = max_num_seqs
        decoder.allocate(num_blocks)
        self._state = seat_state(max_num_seqs, max_blocks, num_blocks, self._device)
        self._inputs = step_inputs(max_batch_tokens + max_num_seqs, max_num_seqs, self._device)
        self._sampled = torch.zeros(max_num_seqs, dtype=torch.int32, device=self._device)
        self._logits = torch.empty((max_num_seqs, decoder.config.vocab_size), dtype=decoder.dtype, device=self._device)
        self._packer = Packer(Seats(max_num_seqs, max_blocks), dummy_block=num_blocks, adapted=decoder.adapted)
        self._uploads = Uploads(self._device, _UPLOAD_INTS)
        self._readings = Readings(max_num_seqs, self._peers.event)
        self._special = SpecialRows(decoder, self._state, max_num_seqs)
        sizes = batch_sizes(max_num_seqs) if graphs else ()
        self._graphs = DecodeGraphs(self._decode_step, sizes)
        self._first_sizes = first_sizes(sizes) if sizes else ()
        counts = row_counts(max_batch_tokens) if graphs else ()
        self._segments = SegmentGraphs(decoder, StepRows(*self._inputs[:4]), counts)
        self._rare_steps = trial.rare_steps((max_blocks - 2) * BLOCK_TOKENS, num_blocks, max_batch_tokens)
        self._first_counts = first_counts(counts) if counts else ()
        self._refused: dict[int, str] = {}
        self._gpu = GpuStatus()

    @property
    def num_blocks(self) -> int:
        """Blocks in the KV pool."""
        return self._num_blocks

    @property
    def gpu(self) -> GpuStatus:
        """See `steps.Runner`; steps for nobody, which `idle_work` computes, are not counted."""
        return self._gpu

    def warm_up(self) -> None:
        """Capture the first graphs; compiles what decode steps need."""
        with torch.inference_mode():
            clear(self._inputs, self._num_blocks, self._max_num_seqs)
            self._graphs.sizes.capture(self._first_sizes)
            self._segments.counts.capture(self._first_counts)
        self._look_at_memory()

    def idle_work(self) -> bool:
        """One piece of what can wait until nobody asks for anything (a graph's capture); False when nothing is left.

        What cannot be prepared is done without: steps are then padded more, or a kernel is made when it is needed.
        """
        self._look_at_memory()
        try:
            return self._prepare_more()
        except (RunnerBroken, torch.AcceleratorError):
            raise
        except Exception:
            if self._peers.shard.world > 1:
                raise  # the ranks may be apart now
            log.exception("idle_work_failed")
            self._graphs.sizes.give_up()
            self._segments.counts.give_up()
            self._rare_steps = iter(())
            self._packer.forget()
            return False

    def _prepare_more(self) -> bool:
        # first what a request would wait for; a size that is not captured yet is only padded more
        rare = next(self._rare_steps, None)
        if rare is not None:
            self._begin(rare).results()
            self._packer.forget()
            return True
        if not self._graphs.sizes.missing and not self._segments.counts.missing:
            log_late_kernels()
            return False
        with torch.inference_mode(), self._peers.together(Capture()):
            # a capture computes its step once before: for nobody, so that no cached block is written
            clear(self._inputs, self._num_blocks, self._max_num_seqs)
            return self._graphs.sizes.capture_next() or self._segments.counts.capture_next()

    def launch(self, plan: StepPlan, progress: Progress = no_progress) -> Pending:
        """Send the step to the device and return; `results` of what it returns waits for it."""
        launched = self._begin(plan)
        if launched.packed is not None:
            self._count(launched.packed)
        return launched

    def _begin(self, plan: StepPlan) -> Launched:
        refused = self._refused = self._refusals(plan)
        steps = plan.sequences
        if refused:
            steps = tuple(step for step in steps if step.sequence_id not in refused)
        try:
            with torch.inference_mode():
                packed, reading = self._launch(steps) if steps else (None, None)
        except BaseException as error:
            self._packer.forget()
            require_device(error)
            raise
        return Launched(plan, refused, packed, reading, self._decoder.config.vocab_size)

    def _count(self, packed: Packed) -> None:
        captured = self._segments.counts if packed.chunks else self._graphs.sizes
        if packed.rows in captured:
            self._gpu = self._gpu.replayed(packed.rows, packed.padding_rows)
        else:
            self._gpu = self._gpu.launched()
        if self._gpu.steps % MEMORY_EVERY_STEPS == 0:
            self._look_at_memory()

    def _look_at_memory(self) -> None:
        self._gpu = structs.replace(self._gpu, allocated_bytes=torch.cuda.memory_allocated())

    def follow(self, order: StepOrder) -> None:
        """Compute this rank's part of a step that the first rank launched."""
        with torch.inference_mode():
            seats = self._compute(order, None)
            if order.resampled:
                self._keep(seats)

    def _launch(self, steps: Sequence[SequenceStep]) -> tuple[Packed, Reading]:
        decoding = all(is_decode(step) for step in steps)
        size = self._graphs.sizes.size_for(len(steps)) if decoding else None
        packed = (
            self._packer.pack(steps, size)
            if decoding
            else self._packer.pack(steps, pad_rows=self._segments.counts.size_for)
        )
        if packed.rows > len(self._inputs.tokens):
            raise ValueError(f"a step of {packed.rows} rows; this runner was made for {len(self._inputs.tokens)}")
        order = self._order(packed, size, decoding=decoding)
        with self._peers.together(order):
            seats = self._compute(order, packed)
            special = self._special.sample(packed, self._logits, self._sampled)
            if order.resampled:
                self._keep(seats)
            return packed, self._readings.start(self._sampled[: len(packed.sampling)], special)

    def _order(self, packed: Packed, size: int | None, *, decoding: bool) -> StepOrder:
        counts = PackedCounts(
            packed.rows, packed.decode_rows, packed.block_deltas, packed.parameter_deltas, self._decoder.adapted
        )
        chunks, chunk_values = None, None
        if not decoding:
            chunks = attention_chunks(packed, dense_allowed=self._decoder.attention.dense_allowed)
            sampled = self._padded([(row.row, row.seat, row.position) for row in packed.sampling])
            chunks, chunk_values = replace(chunks, sampled_rows=len(sampled)), chunks.values(sampled)
        resampled = self._peers.shard.world > 1 and bool(packed.special)
        return StepOrder(packed.values, counts, size, chunks, chunk_values, resampled)

    def _padded(self, sampled: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Up to a number of rows that decode graphs have too: the libraries' kernels for it are loaded already."""
        missing = min(-len(sampled) % SIZE_STEP, self._max_num_seqs - len(sampled))
        return sampled + [(row, self._max_num_seqs, position) for row, _, position in sampled[-1:]] * missing

    def _compute(self, order: StepOrder, packed: Packed | None) -> torch.Tensor:
        """From the order to sampled tokens; the seats of those who sample. Other ranks have no `packed`."""
        values = self._uploads.send(order.values)
        prepare(values, order.counts, self._inputs, self._state, self._decoder.config.vocab_size)
        if order.chunks is not None and order.chunk_values is not None:
            return self._mixed_step(order.counts, order.chunks, self._uploads.send(order.chunk_values), packed)
        if order.graph_size is not None:
            self._graphs.replay(order.graph_size)
        else:
            self._decode_step(order.counts.decodes)
        return self._inputs.seats[: order.counts.decodes]

    def _decode_step(self, rows: int) -> None:
        """`rows` decodes from the inputs to the sampled tokens; the body of a graph."""
        inputs = StepInputs(*(tensor[:rows] for tensor in self._inputs))
        attention = AttentionStep(self._state.block_tables, rows, inputs.seats, inputs.context_lengths)
        step_rows = StepRows(*inputs[:4])
        decoder = self._decoder
        forward = decoder.forward_few if decoder.few_rows_fit(rows) else decoder.forward
        hidden = forward(DeviceStep(step_rows, attention))
        self._sample(hidden, inputs.seats, inputs.context_lengths)

    def _mixed_step(
        self, counts: PackedCounts, chunks: ChunkPlan, sent: torch.Tensor, packed: Packed | None
    ) -> torch.Tensor:
        rows, decodes = counts.rows, counts.decodes
        seats, context_lengths = self._inputs.seats[:decodes], self._inputs.context_lengths[:decodes]
        attention = AttentionStep(
            self._state.block_tables, decodes, seats, context_lengths, chunks.paged(sent), chunks.dense
        )
        last, sampling_seats, new_positions = chunks.sampling(sent)
        kept = None if chunks.scored else last
        if rows in self._segments.counts:
            hidden = self._segments.run(rows, attention, kept)
        else:
            step_rows = StepRows(*(tensor[:rows] for tensor in self._inputs[:4]))
            hidden = self._decoder.forward(DeviceStep(step_rows, attention), kept)
        if chunks.scored:
            if packed is not None:
                self._special.score_prompts(packed, hidden)
            hidden = hidden.index_select(0, last)
        if chunks.sampled_rows:
            self._sample(hidden, sampling_seats, new_positions)
        return sampling_seats

    def _refusals(self, plan: StepPlan) -> dict[int, str]:
        """Why some are not computed. Who continues with a token from the device was looked at in an earlier step, and
        may have been refused in the one that is in flight."""
        refused = dict[int, str]()
        for step in plan.sequences:
            before = step.token_ids is None
            reason = self._refused.get(step.sequence_id) if before else self._refusal(step)
            if reason is not None:
                refused[step.sequence_id] = reason
        return refused

    def _refusal(self, step: SequenceStep) -> str | None:
        vocabulary = self._decoder.config.vocab_size
        if step.token_ids is not None and not 0 <= min(step.token_ids) <= max(step.token_ids) < vocabulary:
            return f"a token id is outside the vocabulary of {vocabulary}"
        if step.next_prompt_token is not None and not 0 <= step.next_prompt_token < vocabulary:
            return f"a prompt token is outside the vocabulary of {vocabulary}"
        named = [token_id for token_id, _ in step.sampling.logit_bias]
        if any(not 0 <= token_id < vocabulary for token_id in (*named, *step.sampling.barred_token_ids)):
            return f"logit_bias or a stop token names a token outside the vocabulary of {vocabulary}"
        return None

    def _sample(self, hidden: torch.Tensor, seats: torch.Tensor, positions: torch.Tensor) -> None:
        """The next token of each row of `hidden`, kept in its seat and in `_sampled`."""
        if self._peers.shard.rank == 0:
            logits = self._decoder.logits(hidden, self._logits[: len(hidden)])
            sampled = self._sampled[: len(hidden)]
            sample(logits, self._state.temperature, self._state.seeds, positions, sampled, seats=seats)
        self._keep(seats)

    def _keep(self, seats: torch.Tensor) -> None:
        """What the first rank sampled for `seats` is their newest token, on every rank."""
        sampled = self._sampled[: len(seats)]
        self._peers.share(sampled)
        keep_sampled(sampled, seats, self._state)
