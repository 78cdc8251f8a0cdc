"""Any other causal decoder: transformers' code computes it, and somebody's pages hold its keys and values.

transformers lets a caller replace attention (`AttentionInterface`); a model that keeps to it never sees the
cache. Whether it does is tried when it is loaded: a short text computed densely, then in pieces through the
pages, must give the same. transformers is needed here alone.
"""

import copy
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM
from transformers.masking_utils import sdpa_mask

from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.errors import ModelBroken, ModelUnsupported
from pagefleet_engine.models.families import KNOWN
from pagefleet_engine.models.foreign_trial import TRIAL_TOKENS, Trial

Attend = Callable[[int, torch.Tensor], torch.Tensor]
"""A layer's attention: its index and the rows' queries, keys and values side by side, to what the rows see, [tokens,
heads x head size]."""
PAGED, TRIAL = "pagefleet_paged", "pagefleet_trial"
"""Our names among transformers' attention implementations; the trial alone has masks made."""
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""How far paged numbers may be from dense ones in the mean, as a share of their mean size."""
_PIECES = (14, 9, 1)
_CHANGING_ROPES = frozenset({"dynamic", "longrope"})
_ATTEND = "pagefleet_attend"


class ForeignModel:
    """A transformers model on one device. `attend_by` and `compare` must follow before it is trusted."""

    _dense: torch.Tensor
    _head: "_Head"

    def __init__(self, config: ModelConfig, folder: Path, *, dtype: torch.dtype, device: torch.device) -> None:
        """Read all weights and see how the model attends; `config` then has its true sizes.

        Raises ModelUnsupported for what cannot be paged, ModelBroken for missing weights.
        """
        self._origin = f"{folder}: model_type is {config.architecture!r}"
        self.dtype, self.device = dtype, device
        _register()
        self._model = _open(folder, self._origin, dtype).to(device).eval()
        self._base: Any = self._model.base_model
        self._refuse_by_looks()
        trial = Trial(self._origin)
        with self._refusing():
            self.config = self._try_out(config, trial)
        self._layers = [layer.module for layer in trial.layers]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights on the device."""
        return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in self._model.parameters()}.values())

    @property
    def embedding(self) -> torch.Tensor:
        """[vocabulary, hidden size]."""
        weight: torch.Tensor = self._model.get_input_embeddings().weight
        return weight

    @property
    def trial_ids(self) -> torch.Tensor:
        """The short text, [tokens], int64."""
        tokens = min(TRIAL_TOKENS, self.config.max_positions)
        return (torch.arange(tokens, device=self.device) * 7 + 3) % self.config.vocab_size

    def attend_by(self, attend: Attend) -> None:
        """From now on `attend` computes every layer's attention, and keeps its keys and values."""
        for index, module in enumerate(self._layers):
            setattr(module, _ATTEND, functools.partial(_attend, functools.partial(attend, index)))
        self._model.set_attn_implementation(PAGED)

    def compare(self, paged: Callable[[int, int], torch.Tensor]) -> None:
        """`paged` computes tokens of the short text, from one place to before another, each once and in order.

        Raises ModelUnsupported for a model whose numbers are not the dense ones then: it keeps a state.
        """
        bounds = [min(bound, len(self._dense)) for bound in itertools.accumulate((0, *_PIECES))]
        pieces = [(start, end) for start, end in itertools.pairwise(bounds) if end > start]
        with self._refusing():
            found = torch.cat([paged(start, end) for start, end in pieces])
        dense, self._dense = self._dense.float(), self._dense[:0]
        distance = (found.float() - dense).abs().mean() / dense.abs().mean()
        if not distance <= TOLERANCE[self.dtype]:
            raise ModelUnsupported(
                f"{self._origin}: computed in pieces over pages its numbers are off by {distance:.1%}: "
                "it keeps a state that is not keys and values"
            )

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden size] before the head, of tokens of any sequences; int64 [tokens] each."""
        output = self._base(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocabulary] in the model's number format, of some rows of `hidden`'s result."""
        return self._head.logits(hidden)

    def _try_out(self, config: ModelConfig, trial: Trial) -> ModelConfig:
        self.config = config
        token_ids = self.trial_ids
        positions = torch.arange(len(token_ids), device=self.device)
        for module in self._model.modules():
            setattr(module, _ATTEND, trial.attend)
        output = self._base(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
        self._dense, self._head = output.last_hidden_state[0], _Head(self._model, type(output))
        seen = trial.config(config)
        whole = self._model(input_ids=token_ids[None], position_ids=positions[None], use_cache=False).logits[0]
        if not torch.allclose(whole.float(), self.logits(self._dense).float(), rtol=1e-2, atol=1e-2):
            raise ModelUnsupported(f"{self._origin}: its head takes more than its last hidden states")
        del trial.layers[config.layers :]
        return seen

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """A model that cannot be computed is refused, with transformers' words."""
        with torch.inference_mode():
            try:
                yield
            except (TypeError, ValueError, KeyError, IndexError, AttributeError, RuntimeError) as error:
                raise ModelUnsupported(f"{self._origin}: its first forward over pages failed: {error}") from error

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


def _attend(
    attend: Callable[[torch.Tensor], torch.Tensor],
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    **options: object,
) -> tuple[torch.Tensor, None]:
    """A layer through the pages; shapes as in `Trial.attend`."""
    rows = torch.cat([part[0].transpose(0, 1).flatten(1) for part in (query, key, value)], 1)
    return attend(rows).view(1, query.shape[2], query.shape[1], query.shape[3]), None


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
