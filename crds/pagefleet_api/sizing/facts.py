"""What is known of a model's size before it runs: its config.json, and its tensors or their index. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pagefleet_api.sizing.fields import ConfigUnusable
from pagefleet_api.sizing.fit import Demand
from pagefleet_api.sizing.model import ModelShape, read_shape
from pagefleet_api.sizing.weights import Tensor, Weights, of_config, of_index, of_tensors, quantised_on_load

CONFIG_FILE, INDEX_FILE = "config.json", "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`tensors` and `index` are None where the files are not at hand."""

    shape: ModelShape
    tensors: Sequence[Tensor] | None = None
    index: Mapping[str, Any] | None = None

    @classmethod
    def read(
        cls,
        config: Mapping[str, Any],
        *,
        tensors: Sequence[Tensor] | None = None,
        index: Mapping[str, Any] | None = None,
    ) -> Self:
        """From the files' contents; of the index only what it says of the whole is kept. Raises ConfigUnusable."""
        kept = None if index is None else {"metadata": index.get("metadata")}
        try:
            return cls(read_shape(config), tensors, kept)
        except (TypeError, AttributeError) as error:
            raise ConfigUnusable(f"config.json: a field is of another type than it should be: {error}") from error

    def weights(self, demand: Demand) -> Weights:
        """Bytes of all weights as they are kept when run like that."""
        element_bytes = demand.element_bytes(self.shape)
        whole = self.stored(element_bytes)
        if demand.quantisation is None:
            return whole
        return quantised_on_load(whole, self.shape, demand.quantisation, element_bytes)

    def stored(self, element_bytes: int) -> Weights:
        """Bytes of all weights, floats in that format, from the surest source that there is."""
        if self.tensors is not None:
            return of_tensors(self.tensors, element_bytes)
        indexed = None if self.index is None else of_index(self.index, self.shape, element_bytes)
        return indexed or of_config(self.shape, element_bytes)
