"""Tokens of the sequences whose sampling penalises what came before, kept from one step to the next."""

from collections.abc import Sequence

import torch

from pagefleet_engine.steps import SequenceStep


class Past:
    """One sequence's tokens so far, the first `prompt_tokens` of which are its prompt."""

    __slots__ = ("prompt_tokens", "token_ids")

    def __init__(self, token_ids: Sequence[int], prompt_tokens: int) -> None:
        self.token_ids = list(token_ids)
        self.prompt_tokens = prompt_tokens

    def seen(self) -> torch.Tensor:
        """The tokens of prompt and answer, each once (int64)."""
        return torch.tensor(self.token_ids, dtype=torch.int64).unique()

    def generated(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens of the answer, each once, and how often each is there (int64)."""
        answer = torch.tensor(self.token_ids[self.prompt_tokens :], dtype=torch.int64)
        ids, counts = answer.unique(return_counts=True)
        return ids, counts


class Histories:
    """What `SequenceStep.history` began, by sequence.

    Nobody says when a sequence ends. But all that are seated are in every plan that the scheduler makes, so of
    those in the latest plans as many are kept as the largest plan had: whoever is dropped has left. A step that
    is computed again finds its sequence as it was.
    """

    def __init__(self) -> None:
        self._pasts: dict[int, Past] = {}
        self._largest_plan = 0

    def follow(self, sequences: Sequence[SequenceStep]) -> None:
        """Take in the tokens of a plan; call it before the plan's sequences are looked up."""
        self._largest_plan = max(self._largest_plan, len(sequences))
        for step in sequences:
            past = self._pasts.pop(step.sequence_id, None)
            if step.history is not None:
                past = Past(step.history.token_ids, step.history.prompt_tokens)
            elif past is not None:
                past.token_ids[step.start :] = step.token_ids or ()
            if past is not None and step.sampling.penalises:
                self._pasts[step.sequence_id] = past
        while len(self._pasts) > self._largest_plan:
            del self._pasts[next(iter(self._pasts))]

    def past(self, step: SequenceStep) -> Past | None:
        """The tokens before the one that this step samples; None where they are not known or do not matter."""
        return self._pasts.get(step.sequence_id)
