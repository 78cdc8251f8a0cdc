"""Whether one more request may wait, decided without asking the core."""


def capacity(*, max_num_seqs: int, max_queued: int, running: int, waiting: int, fitting: int | None) -> int:
    """Sequences that may be open: `max_queued` more than have a seat.

    `running` and `waiting` are those of the core's latest pass. While some wait, the seats are what runs
    (memory may seat fewer than `max_num_seqs`); while none does, every seat counts, taken or not, that
    memory has room for: `fitting` of `fitting_prompts`.
    """
    if waiting:
        return max_queued + running
    return max_queued + (max_num_seqs if fitting is None else max(running, min(max_num_seqs, fitting)))


def fitting_prompts(num_blocks: int, sequences: int, prompt_blocks: int) -> int | None:
    """How many prompts like the open ones, `sequences` with `prompt_blocks` together, the KV pool holds.

    None while none is open. Shared prefixes are not counted on, so there may be room for more.
    """
    return num_blocks * sequences // prompt_blocks if sequences else None
