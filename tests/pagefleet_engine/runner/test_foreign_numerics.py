"""Models that transformers computes, over our pages: the same logits as without, or refused at the start."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from pagefleet_api.launch import Launch
from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.errors import ModelBroken, ModelUnsupported
from pagefleet_engine.models.foreign import ForeignDecoder
from pagefleet_engine.models.opening import open_foreign
from pagefleet_engine.models.source import resolve
from pagefleet_engine.runner import foreign, loading
from pagefleet_engine.runner.errors import LaunchImpossible
from tests.pagefleet_engine.runner import references, step_driver
from tests.pagefleet_engine.runner.family_models import VOCABULARY, WINDOW, Family, write

pytestmark = pytest.mark.torch
FOREIGN = {
    "a part of each head turns, norms with biases": Family("GPTNeoX", {"rotary_pct": 0.5}),
    "another part": Family("StableLm"),
    "a scaled head": Family("Cohere"),
    "windows in some layers": Family("Cohere2", {"sliding_window": WINDOW}),
    "learned positions": Family("GPT2", model="GPT2LMHeadModel"),
    "a decoder inside": Family("OPT", {"ffn_dim": 80, "word_embed_proj_dim": 64}),
    "one KV head": Family("GPTBigCode"),
    "experts beside a shared one": Family("Qwen2Moe", {"num_experts": 4, "moe_intermediate_size": 24}),
}
TEXT = [3 + (index * 13) % (VOCABULARY - 3) for index in range(90)]


@pytest.fixture(scope="module", params=FOREIGN, ids=str)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder and transformers' own model of it."""
    folder: Path = tmp_path_factory.mktemp("foreign")
    return folder, write(FOREIGN[request.param], folder)


def opened(folder: Path) -> ForeignDecoder:
    """Our decoder for a folder."""
    files = resolve(f"file://{folder}")
    model = open_foreign(files, read_config(files), dtype=torch.float32, device=torch.device("cpu"))
    return ForeignDecoder(model)


def test_logits_over_pages_are_those_of_transformers(pair: tuple[Path, Any]) -> None:
    folder, reference = pair
    ours, exact = opened(folder), references.reference_logits(reference, TEXT)
    assert exact.std() > 0.1
    for chunks in ([90], [70, 1, 1, 18], [5, 33, *[1] * 52]):
        difference = (references.decoder_logits(ours, TEXT, chunks) - exact).abs().max().item()
        assert difference <= references.MAX_LOGIT_DIFFERENCE


def test_a_launch_serves_it_in_batches(pair: tuple[Path, Any]) -> None:
    folder, reference = pair
    loaded = loading.load(Launch(model=f"file://{folder}", dtype="float32", num_kv_blocks=40, device="cpu"))
    prompts = [TEXT[:5], TEXT[10:70], TEXT[:40]]
    batch = step_driver.sequences(prompts, 40, 8)
    step_driver.run_interleaved(loaded.runner, batch, 8, chunk=17)
    for sequence, prompt in zip(batch, prompts, strict=True):
        references.assert_greedy(reference, prompt, sequence.answer[:8])


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        (Family("Bloom"), "takes no position ids"),
        (Family("GptOss", {"num_local_experts": 2, "head_dim": 16}), "takes 's_aux'"),
        (Family("DiffLlama"), "must attend once"),
        (Family("Falcon"), "its attention cannot be replaced"),
        (Family("GPTNeoX", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}), "a rope"),
    ],
)
def test_what_pages_cannot_hold_is_refused_with_the_reason(family: Family, reason: str, tmp_path: Path) -> None:
    write(family, tmp_path)
    with pytest.raises(ModelUnsupported, match=reason):
        opened(tmp_path)


def test_a_state_beside_keys_and_values_is_found_by_trying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Family("StableLm"), tmp_path)
    mlp = transformers.models.stablelm.modeling_stablelm.StableLmMLP
    plain = mlp.forward
    monkeypatch.setattr(mlp, "forward", lambda self, x: plain(self, x).cumsum(1))
    with pytest.raises(ModelUnsupported, match="it keeps a state"):
        opened(tmp_path)


def test_missing_weights_and_models_that_transformers_lacks_are_refused(tmp_path: Path) -> None:
    write(Family("StableLm"), tmp_path)
    config = tmp_path / "config.json"
    known = config.read_text()
    config.write_text(known.replace('"stablelm"', '"no_such_model"'))
    with pytest.raises(ModelUnsupported, match=r"no_such_model.*this engine runs gemma, gemma2"):
        opened(tmp_path)
    config.write_text(known.replace('"num_hidden_layers": 4', '"num_hidden_layers": 5'))
    with pytest.raises(ModelBroken, match="its files have no"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("flags", "device", "reason"),
    [
        ({"load_format": "dummy"}, "cpu", "--load-format dummy: a stablelm model .* needs its own weights"),
        ({"tensor_parallel_size": 2}, "cuda", "--tensor-parallel-size 2: a stablelm model .* not shared out"),
        ({"batch_invariant": True}, "cuda", "--batch-invariant: a stablelm model .* changes with the batch"),
        ({}, "cuda", None),
        ({"batch_invariant": True}, "cpu", None),
    ],
)
def test_flags_for_our_own_decoder_alone_are_refused(
    flags: dict[str, Any], device: str, reason: str | None, tmp_path: Path
) -> None:
    write(Family("StableLm"), tmp_path)
    config = read_config(resolve(f"file://{tmp_path}"))
    launch = Launch(model=f"file://{tmp_path}", **flags)
    with nullcontext() if reason is None else pytest.raises(LaunchImpossible, match=reason):
        foreign.check(launch, config, device)
