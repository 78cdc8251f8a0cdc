"""Text to token ids and token ids to their exact bytes. Imports no torch."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pagefleet_engine.models import gguf_tokenizer, token_bytes
from pagefleet_engine.models.config_fields import read_json
from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.errors import ModelBroken
from pagefleet_engine.models.gguf import Gguf
from pagefleet_engine.models.source import TOKENIZER_FILE, FolderModel, GgufModel, ModelFiles

TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
_DEFAULT_TEMPLATE = "default"


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What a chat template needs beside the messages; None where the model has none."""

    template: str | None
    bos_token: str | None
    eos_token: str | None


class ModelTokenizer:
    """One model's tokenizer; safe to share between threads.

    `eos_ids` are all tokens that end an answer, `bos_id` the one that starts a text, if any;
    `vocab_size` is one more than the largest token id.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, chat: ChatSettings, bos_id: int | None, eos_ids: tuple[int, ...]
    ) -> None:
        self._tokenizer = tokenizer
        self._bytes, self._drops_first_space = token_bytes.table(tokenizer)
        self._special = frozenset(
            token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special
        )
        self.chat_template, self.bos_token, self.eos_token = chat.template, chat.bos_token, chat.eos_token
        self.bos_id, self.eos_ids = bos_id, eos_ids
        self.vocab_size = len(self._bytes)

    def encode(self, text: str, add_special: bool) -> list[int]:
        """Token ids of `text`; `add_special` adds what the model expects around a text (such as bos).

        Special tokens written in `text` become their ids. Runs without the interpreter lock (the
        library's `encode` would hold it, its batch call does not).
        """
        [encoded] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special)
        return list(encoded.ids)

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token, maybe not UTF-8 by themselves.

        A special token gives its text's bytes; an id that no token has (padding of the embedding) none.
        """
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control token (turn markers, end of text), not text."""
        return token_id in self._special

    def decode(self, token_ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of whole token sequences; bytes that are no UTF-8 become U+FFFD.

        SentencePiece models write a space before the first word, which is dropped here as their own
        decoders do; `token_bytes` keeps it.
        """
        kept = (i for i in token_ids if not (skip_special and i in self._special))
        text = b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._drops_first_space else text


def load_tokenizer(files: ModelFiles) -> ModelTokenizer:
    """The model's tokenizer. Raises ModelUnsupported or ModelBroken, naming the file and what is wrong."""
    if isinstance(files, GgufModel):
        return _from_gguf(Gguf(files.path), files)
    return _from_folder(files)


def _from_gguf(gguf: Gguf, files: GgufModel) -> ModelTokenizer:
    config = read_config(files)
    tokens: list[str] = gguf.array(gguf_tokenizer.TOKENS)
    template = gguf.metadata.get("tokenizer.chat_template")

    def text(token_id: int | None) -> str | None:
        return tokens[token_id] if token_id is not None and token_id < len(tokens) else None

    chat = ChatSettings(
        template=template if isinstance(template, str) else None,
        bos_token=text(config.bos_id),
        eos_token=text(config.eos_ids[0] if config.eos_ids else None),
    )
    return ModelTokenizer(gguf_tokenizer.build(gguf), chat=chat, bos_id=config.bos_id, eos_ids=config.eos_ids)


def _from_folder(files: FolderModel) -> ModelTokenizer:
    config, path = read_config(files), files.path / TOKENIZER_FILE
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ModelBroken(f"{path} is not a tokenizer: {error}") from error
    settings_path = files.path / TOKENIZER_CONFIG_FILE
    settings = read_json(settings_path) if settings_path.is_file() else {}
    chat = ChatSettings(
        template=_folder_template(files.path / TEMPLATE_FILE, settings.get("chat_template")),
        bos_token=_token_text(settings.get("bos_token")),
        eos_token=_token_text(settings.get("eos_token")),
    )
    return ModelTokenizer(tokenizer, chat=chat, bos_id=config.bos_id, eos_ids=config.eos_ids)


def _folder_template(path: Path, configured: Any) -> str | None:
    """The template file's text, else the configured one; of several named ones the default."""
    if path.is_file():
        return path.read_text(encoding="utf-8")
    if isinstance(configured, list):
        named = {entry.get("name"): entry.get("template") for entry in configured if isinstance(entry, dict)}
        configured = named.get(_DEFAULT_TEMPLATE)
    return configured if isinstance(configured, str) else None


def _token_text(value: Any) -> str | None:
    """A token in tokenizer_config.json: its text, or an object with `content`."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None
