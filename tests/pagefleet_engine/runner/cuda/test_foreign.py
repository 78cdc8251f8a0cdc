"""Models that transformers computes, on a GPU: our kernels hold their keys and values, and attend to them."""

from pathlib import Path

import pytest
import torch
import transformers

from pagefleet_api.launch import Launch
from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.errors import ModelUnsupported
from pagefleet_engine.models.opening import open_foreign
from pagefleet_engine.models.source import resolve
from pagefleet_engine.runner import loading
from pagefleet_engine.runner.cuda.foreign import ForeignCudaDecoder
from pagefleet_engine.runner.cuda.runner import CudaRunner
from pagefleet_engine.steps import Sampling
from tests.pagefleet_engine.runner import references, step_driver
from tests.pagefleet_engine.runner.family_models import VOCABULARY, WINDOW, Family, write

pytestmark = pytest.mark.torch
FOREIGN = {
    "a part of each head turns": Family("GPTNeoX", {"rotary_pct": 0.5}),
    "windows in some layers": Family("Cohere2", {"sliding_window": WINDOW}),
    "learned positions": Family("GPT2", model="GPT2LMHeadModel"),
    "one KV head": Family("GPTBigCode"),
}
TEXT = [3 + (index * 13) % (VOCABULARY - 3) for index in range(40)]
BLOCKS, SEATS, TOKENS = 40, 4, 64


def opened(folder: Path, device: str) -> ForeignCudaDecoder:
    """The decoder of a folder."""
    files = resolve(f"file://{folder}")
    with torch.inference_mode():
        model = open_foreign(files, read_config(files), dtype=torch.float32, device=torch.device(device))
        return ForeignCudaDecoder(model, max_decodes=SEATS)


@pytest.mark.parametrize("name", FOREIGN)
def test_batches_and_chunks_answer_as_transformers_does(name: str, device: str, tmp_path: Path) -> None:
    reference = write(FOREIGN[name], tmp_path)
    decoder = opened(tmp_path, device)
    assert decoder.weight_bytes > 0
    runner = CudaRunner(
        decoder, BLOCKS, max_num_seqs=SEATS, max_batch_tokens=TOKENS, max_blocks=8, graphs=False
    )  # fmt: skip
    prompts = [TEXT[:5], TEXT[10:35]]
    greedy = Sampling(seed=0, temperature=0.0)
    batch = step_driver.sequences(prompts, BLOCKS, 3, [greedy] * len(prompts))
    step_driver.run_interleaved(runner, batch, 3, chunk=17)
    for sequence, prompt in zip(batch, prompts, strict=True):
        references.assert_greedy(reference, prompt, sequence.answer[:3])


def test_a_state_beside_keys_and_values_is_found_by_trying(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(Family("StableLm"), tmp_path)
    mlp = transformers.models.stablelm.modeling_stablelm.StableLmMLP
    plain = mlp.forward
    monkeypatch.setattr(mlp, "forward", lambda self, x: plain(self, x).cumsum(1))
    with pytest.raises(ModelUnsupported, match="it keeps a state"):
        opened(tmp_path, device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_launch_serves_it(name: str, dtype: str, tmp_path: Path) -> None:
    reference = write(FOREIGN[name], tmp_path)
    loaded = loading.load(Launch(model=f"file://{tmp_path}", dtype=dtype, num_kv_blocks=200, device="cuda"))
    wishes = [
        Sampling(seed=0, temperature=0.0), Sampling(seed=3, temperature=0.8, top_p=0.9, top_logprobs=3),
        Sampling(seed=0, temperature=0.0),
    ]  # fmt: skip
    prompts = [TEXT[:5], TEXT[10:35], TEXT[:40]]
    batch = step_driver.sequences(prompts, 200, 8, wishes)
    step_driver.run_interleaved(loaded.runner, batch, 8, chunk=17)
    for sequence in batch:
        assert len(sequence.answer) >= 8
    if dtype == "float32":
        for index in (0, 2):
            references.assert_greedy(reference, prompts[index], batch[index].answer[:8])
    while loaded.runner.idle_work():
        pass
