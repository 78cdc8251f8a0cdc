"""A `tokenizers` pipeline from a GGUF file's vocabulary.

The splitting rules by name are those of llama.cpp (src/llama-vocab.cpp, `llama_vocab_pre_type`).
"""

from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from pagefleet_engine.models.errors import ModelBroken, ModelUnsupported
from pagefleet_engine.models.gguf import Gguf

TOKENS, TYPES, MERGES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges"
BYTE_LEVEL_MODEL = "gpt2"
_CONTROL, _USER_DEFINED = 3, 4
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _llama3() -> Any:
    split = pre_tokenizers.Split(Regex(_LLAMA3_WORDS), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


SPLITTERS: dict[str, Callable[[], Any]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": _llama3,
    "llama3": _llama3,
}
_WHOLE_WORDS_FIRST = ("llama-bpe", "llama3")


def build(gguf: Gguf) -> Tokenizer:
    """The tokenizer that the file describes.

    Raises ModelUnsupported when its model or splitting rule is another, ModelBroken when lists are
    missing or disagree.
    """
    kind, rule = gguf.metadata.get("tokenizer.ggml.model"), gguf.metadata.get("tokenizer.ggml.pre", "default")
    way_out = "use the model's folder with tokenizer.json instead"
    if kind != BYTE_LEVEL_MODEL:
        raise ModelUnsupported(
            f"{gguf.path}: tokenizer.ggml.model is {kind!r}; only {BYTE_LEVEL_MODEL!r} is read from GGUF; {way_out}"
        )
    if not isinstance(rule, str) or rule not in SPLITTERS:
        raise ModelUnsupported(
            f"{gguf.path}: tokenizer.ggml.pre is {rule!r}; known are {', '.join(SPLITTERS)}; {way_out}"
        )
    tokens, types, merges = (_array(gguf, key) for key in (TOKENS, TYPES, MERGES))
    vocabulary = {text: token_id for token_id, text in enumerate(tokens)}
    if len(vocabulary) != len(tokens) or len(types) != len(tokens):
        raise ModelBroken(f"{gguf.path}: {TOKENS} has duplicates or another length than {TYPES}")
    try:
        pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
        model = models.BPE(vocabulary, pairs, ignore_merges=rule in _WHOLE_WORDS_FIRST)
    except Exception as error:  # the library raises nothing narrower
        raise ModelBroken(f"{gguf.path}: {MERGES} do not fit {TOKENS}: {error}") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = SPLITTERS[rule]()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(_added(tokens, types))
    _add_bos(tokenizer, gguf, tokens)
    return tokenizer


def _array(gguf: Gguf, key: str) -> list[Any]:
    if key not in gguf.arrays:
        raise ModelBroken(f"{gguf.path} has no {key}")
    return gguf.array(key)


def _added(tokens: list[str], types: list[int]) -> list[AddedToken]:
    return [
        AddedToken(text, special=kind == _CONTROL, normalized=False)
        for text, kind in zip(tokens, types, strict=True)
        if kind in {_CONTROL, _USER_DEFINED}
    ]


def _add_bos(tokenizer: Tokenizer, gguf: Gguf, tokens: list[str]) -> None:
    """Put the bos token before every text when the file asks for it."""
    bos_id = gguf.metadata.get("tokenizer.ggml.bos_token_id")
    if gguf.metadata.get("tokenizer.ggml.add_bos_token") is not True or not isinstance(bos_id, int):
        return
    if bos_id >= len(tokens):
        raise ModelBroken(f"{gguf.path}: bos token {bos_id} is outside the vocabulary of {len(tokens)}")
    bos = tokens[bos_id]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[bos, "$A"], pair=[bos, "$A", bos, "$B"], special_tokens=[(bos, bos_id)]
    )
