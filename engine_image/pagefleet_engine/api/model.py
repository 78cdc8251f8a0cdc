"""The served model as the API process knows it: name, tokenizer, chat template, end tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagefleet_engine.api.errors import ContextTooLong, InvalidRequest
from pagefleet_engine.api.fields import shown
from pagefleet_engine.api.requests import Prompt
from pagefleet_engine.api.templates import ChatTemplate, TemplateInvalid, plain_messages
from pagefleet_engine.models.source import ModelFiles
from pagefleet_engine.scheduler.admission import Capacity

if TYPE_CHECKING:
    from pagefleet_engine.models.tokenizer import ModelTokenizer

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Everything slow about text; all methods may run in any thread.

    Methods that take a `capacity` raise `ContextTooLong` for text that is surely too long, before the slow
    work of tokenising it.
    """

    tokenizer: "ModelTokenizer"
    template: ChatTemplate | None
    longest_token_bytes: int

    @classmethod
    def load(cls, files: ModelFiles, template_path: str | None) -> "ServedModel":
        """Read the tokenizer and compile the template, the model's or that of `template_path`.

        Raises the models package's errors, and `TemplateInvalid` also for a path that cannot be read.
        """
        # Imported here, in a thread: its imports take longer than those of the web server.
        from pagefleet_engine.models.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(files)
        source = tokenizer.chat_template if template_path is None else _template_text(template_path)
        longest = max((len(tokenizer.token_bytes(token_id)) for token_id in range(tokenizer.vocab_size)), default=1)
        if source is None:
            return cls(tokenizer, None, longest)
        try:
            template = ChatTemplate(source, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)
        except TemplateInvalid as error:
            raise TemplateInvalid(_template_advice(template_path, files, error)) from error
        return cls(tokenizer, template, longest)

    def chat_tokens(self, messages: Sequence[dict[str, Any]], capacity: Capacity) -> TokenIds:
        """The conversation's tokens up to where the answer begins; raises `InvalidRequest`."""
        if self.template is None:
            raise InvalidRequest(
                "This model has no chat template. Start the engine with --chat-template PATH, or use /v1/completions.",
                param="messages",
            )
        return self._encoded(self.template.render(plain_messages(messages)), capacity, "messages", add_special=False)

    def prompt_tokens(self, prompt: Prompt, capacity: Capacity) -> TokenIds:
        """A completion prompt's tokens; raises `InvalidRequest` for token ids that the model does not have."""
        if isinstance(prompt, str):
            return self._encoded(prompt, capacity, "prompt", add_special=True)
        largest = max(prompt)
        if largest >= self.tokenizer.vocab_size:
            raise InvalidRequest(
                f"prompt holds the token id {shown(largest)}; this model's are 0 to {self.tokenizer.vocab_size - 1}",
                param="prompt",
            )
        return prompt

    def _encoded(self, text: str, capacity: Capacity, param: str, *, add_special: bool) -> TokenIds:
        """Tokens of `text`; raises `InvalidRequest` when it has characters and no tokens."""
        most_bytes = capacity.window_tokens * self.longest_token_bytes
        if len(text) > most_bytes:
            raise ContextTooLong(
                f"The prompt has {len(text)} characters; this server's window is {capacity.window_tokens} tokens, "
                f"which hold at most {most_bytes} bytes of text.",
                param=param,
            )
        token_ids = tuple(self.tokenizer.encode(text, add_special=add_special))
        if text and not token_ids:
            raise InvalidRequest(
                f"The prompt {shown(text)} has no token in this model's vocabulary, so there is nothing to go on from.",
                param=param,
            )
        return token_ids


def _template_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateInvalid(
            f"--chat-template {path}: it cannot be read: {getattr(error, 'strerror', None) or error}; give the path of "
            "a Jinja file, or leave the flag out to use the model's own template"
        ) from error


def _template_advice(path: str | None, files: ModelFiles, error: TemplateInvalid) -> str:
    if path is None:
        return f"model {files.uri!r}: {error}; give another one with --chat-template PATH"
    return f"--chat-template {path}: {error}; correct it, or leave the flag out to use the model's own template"
