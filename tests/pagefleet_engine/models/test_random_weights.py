"""Dummy weights: the shape of a model without the model."""

import pytest
import torch

from pagefleet_engine.models.errors import ModelBroken
from pagefleet_engine.models.random_weights import STANDARD_DEVIATION, RandomWeights

pytestmark = pytest.mark.torch
SHAPES = {
    "model.embed_tokens.weight": (300, 64),
    "model.layers.0.input_layernorm.weight": (64,),
    "model.layers.0.self_attn.q_norm.weight": (16,),
    "model.layers.0.mlp.down_proj.weight": (64, 128),
    "model.norm.weight": (64,),
}


def weights(seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> RandomWeights:
    return RandomWeights(SHAPES, device=torch.device("cpu"), dtype=dtype, seed=seed)


def test_tensors_have_the_models_shapes_and_the_asked_for_format() -> None:
    for name, shape in SHAPES.items():
        values = weights().tensor(name)
        assert (tuple(values.shape), values.dtype) == (shape, torch.bfloat16)
        assert values.isfinite().all()


def test_norms_are_one_and_matrices_spread_around_zero() -> None:
    for name, shape in SHAPES.items():
        values = weights(dtype=torch.float32).tensor(name)
        if len(shape) == 1:
            assert (values == 1).all()
        else:
            assert values.mean().abs() < STANDARD_DEVIATION / 20
            assert abs(values.std() / STANDARD_DEVIATION - 1) < 0.05


def test_a_tensor_depends_on_its_name_and_the_seed_but_not_on_who_asked_for_what_before() -> None:
    first = weights()
    last_of_first = [first.tensor(name) for name in SHAPES][-2]
    name = "model.layers.0.mlp.down_proj.weight"
    assert weights().tensor(name).equal(last_of_first)
    assert not weights(seed=1).tensor(name).equal(last_of_first)
    assert not weights().tensor("model.embed_tokens.weight")[:64].flatten()[:99].equal(last_of_first.flatten()[:99])


def test_a_name_that_the_model_lacks_is_refused() -> None:
    with pytest.raises(ModelBroken, match=r"model\.layers\.9"):
        weights().tensor("model.layers.9.mlp.down_proj.weight")
