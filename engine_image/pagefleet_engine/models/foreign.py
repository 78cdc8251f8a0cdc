"""Any other causal decoder: transformers' code computes it, our pages hold its keys and values.

transformers lets a caller replace attention (`AttentionInterface`); a model that keeps to it never sees the
cache. Whether it does is tried when it is loaded: a short text computed densely, then in pieces through the
pages, must give the same. transformers is needed here alone.
"""

import copy
import functools
import inspect
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM
from transformers.masking_utils import sdpa_mask

from pagefleet_api.sizing import BLOCK_TOKENS, blocks_for
from pagefleet_engine.models.attention import HeadShape, StepAttention
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.errors import ModelBroken, ModelUnsupported
from pagefleet_engine.models.families import KNOWN
from pagefleet_engine.models.foreign_trial import TRIAL_TOKENS, Trial
from pagefleet_engine.models.packed import PackedStep, PrefillChunk
from pagefleet_engine.models.paged import PagedDecoder
from pagefleet_engine.models.source import FolderModel
from pagefleet_engine.steps import Progress, no_progress

PAGED, TRIAL = "pagefleet_paged", "pagefleet_trial"
"""Our names among transformers' attention implementations; the trial alone has masks made."""
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""How far paged numbers may be from dense ones in the mean, as a share of their mean size."""
_PIECES = (14, 9, 1)
_CHANGING_ROPES = frozenset({"dynamic", "longrope"})
_ATTEND = "pagefleet_attend"


class ForeignDecoder(PagedDecoder):
    """A transformers model as a decoder of ours."""

    def __init__(self, config: ModelConfig, files: FolderModel, *, dtype: torch.dtype, device: torch.device) -> None:
        """Read all weights and try the model; `config` then has its true sizes.

        Raises ModelUnsupported for what cannot be paged, ModelBroken for missing weights.
        """
        super().__init__(config, dtype, device)
        self._origin = f"{files.path}: model_type is {config.architecture!r}"
        _register()
        self._model = _open(files.path, self._origin, dtype).to(device).eval()
        self._base: Any = self._model.base_model
        self._progress: Progress = no_progress
        self._refuse_by_looks()
        with torch.inference_mode():
            try:
                self._try_out()
            except (TypeError, ValueError, KeyError, IndexError, AttributeError, RuntimeError) as error:
                raise ModelUnsupported(f"{self._origin}: its first forward over pages failed: {error}") from error

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights on the device."""
        return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in self._model.parameters()}.values())

    def _forward(self, step: PackedStep, progress: Progress) -> torch.Tensor:
        self._attention = StepAttention(step, HeadShape.of(self.config), self.config, self._memory[0])
        self._progress = progress
        return self._run(self._ints(step.token_ids), self._ints(step.positions))

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._head.logits(hidden).float()

    def _run(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        output = self._base(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def _attend(
        self,
        index: int,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: object,
        **options: object,
    ) -> tuple[torch.Tensor, None]:
        """Layer `index` through the pages; shapes as in `Trial.attend`."""
        rows = [part[0].transpose(0, 1).flatten(1) for part in (query, key, value)]
        projected, memory = torch.cat(rows, 1), self._memory[index]
        self._attention.write(memory, projected)
        attended = self._attention.attend(memory, projected, self.config.attention[index].window)
        self._progress()
        return attended.view(1, query.shape[2], query.shape[1], query.shape[3]), None

    def _try_out(self) -> None:
        """See how the model attends, take its attention over, and compare."""
        tokens = min(TRIAL_TOKENS, self.config.max_positions)
        token_ids = (torch.arange(tokens, device=self.device) * 7 + 3) % self.config.vocab_size
        positions = torch.arange(tokens, device=self.device)
        trial = Trial(self._origin)
        for module in self._model.modules():
            setattr(module, _ATTEND, trial.attend)
        output = self._base(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
        dense, self._head = output.last_hidden_state[0], _Head(self._model, type(output))
        self.config = trial.config(self.config)
        whole = self._model(input_ids=token_ids[None], position_ids=positions[None], use_cache=False).logits[0]
        if not torch.allclose(whole.float(), self._logits(dense), rtol=1e-2, atol=1e-2):
            raise ModelUnsupported(f"{self._origin}: its head takes more than its last hidden states")
        for index, layer in enumerate(trial.layers[: self.config.layers]):
            setattr(layer.module, _ATTEND, functools.partial(self._attend, index))
        self._model.set_attn_implementation(PAGED)
        self._compare(token_ids, dense)

    def _compare(self, token_ids: torch.Tensor, dense: torch.Tensor) -> None:
        """Refuse a model whose paged numbers, computed in pieces, are not the dense ones: it keeps a state."""
        self.allocate(blocks_for(len(token_ids)))
        bounds = np.minimum(np.cumsum((0, *_PIECES)), len(token_ids))
        ids = token_ids.cpu().numpy()
        pieces = [_piece(ids, int(start), int(end)) for start, end in itertools.pairwise(bounds) if end > start]
        paged = torch.cat([self._forward(piece, no_progress) for piece in pieces])
        self._memory = []
        distance = (paged.float() - dense.float()).abs().mean() / dense.float().abs().mean()
        if not distance <= TOLERANCE[self.dtype]:
            raise ModelUnsupported(
                f"{self._origin}: computed in pieces over pages its numbers are off by {distance:.1%}: "
                "it keeps a state that is not keys and values"
            )

    def _refuse_by_looks(self) -> None:
        if getattr(self._model, "_is_stateful", False):
            raise ModelUnsupported(f"{self._origin}: layers with a state of their own are not served")
        if "position_ids" not in inspect.signature(self._base.forward).parameters:
            raise ModelUnsupported(f"{self._origin}: it takes no position ids, so its tokens cannot be packed")
        given = getattr(self._model.config, "rope_parameters", None) or {}
        kinds = {part.get("rope_type") for part in (given, *given.values()) if isinstance(part, dict)}
        if kinds & _CHANGING_ROPES:
            raise ModelUnsupported(f"{self._origin}: a rope that changes as a text grows cannot be cached")
        if getattr(self._model.config, "attention_chunk_size", None):
            raise ModelUnsupported(f"{self._origin}: attention_chunk_size; attention in chunks is not served")


class _Head:
    """A model without its layers: its head, with whatever scale or cap follows, over given hidden states."""

    def __init__(self, model: Any, output_type: type[Any]) -> None:
        """`output_type` is what the model's layers give."""
        self._hidden: torch.Tensor | None = None
        layers = torch.nn.Identity()
        layers.forward = lambda *_, **__: output_type(last_hidden_state=self._hidden)
        object.__setattr__(layers, "decoder", layers)  # where OPT's head looks; no submodule, that would be a cycle
        self._model = copy.copy(model)
        self._model._modules = model._modules | {model.base_model_prefix: layers}

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden size] to [rows, vocabulary]."""
        self._hidden = hidden[None]
        logits: torch.Tensor = self._model(inputs_embeds=self._hidden, use_cache=False).logits[0]
        return logits


def _register() -> None:
    for name in (PAGED, TRIAL):
        AttentionInterface.register(name, _call)
    AttentionMaskInterface.register(TRIAL, functools.partial(sdpa_mask, allow_is_causal_skip=False))
    AttentionMaskInterface.register(PAGED, _no_mask)


def _call(module: torch.nn.Module, *tensors: torch.Tensor | None, **options: Any) -> Any:
    return getattr(module, _ATTEND)(module, *tensors, **options)


def _no_mask(*_: object, **__: object) -> None:
    return None


def _open(folder: Path, origin: str, dtype: torch.dtype) -> Any:
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation=TRIAL, local_files_only=True, output_loading_info=True
        )
    except KeyError as error:
        raise ModelUnsupported(f"{origin}: its attention cannot be replaced (no {error})") from error
    except (ValueError, ImportError, AttributeError, RuntimeError, OSError) as error:
        raise ModelUnsupported(f"{origin}; this engine runs {KNOWN}, and transformers says: {error}") from error
    if loading["missing_keys"]:
        raise ModelBroken(f"{folder}: its files have no {', '.join(sorted(loading['missing_keys'])[:5])}")
    return model


def _piece(token_ids: np.ndarray[Any, np.dtype[np.int64]], start: int, end: int) -> PackedStep:
    """Tokens `start` .. `end` - 1 of one sequence in blocks 0, 1, …"""
    positions = np.arange(start, end, dtype=np.int64)
    blocks = np.arange(-(-end // BLOCK_TOKENS), dtype=np.int64)
    last_rows = np.array([end - start - 1], np.int64)
    chunk = PrefillChunk(0, end - start, start, blocks)
    return PackedStep(token_ids[start:end], positions, positions, (0,), last_rows, (), (chunk,))
