"""The served model as the API process knows it: name, tokenizer, chat template, end tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagefleet_engine.api.errors import InvalidRequest
from pagefleet_engine.api.requests import Prompt
from pagefleet_engine.api.templates import ChatTemplate, plain_messages
from pagefleet_engine.models.source import ModelFiles

if TYPE_CHECKING:
    from pagefleet_engine.models.tokenizer import ModelTokenizer

TokenIds = tuple[int, ...]


def served_name(name: str | None, uri: str) -> str:
    """The name that clients use: the one given, else the last path part of the URI."""
    return name or uri.rstrip("/").rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Everything slow about text; all methods may run in any thread."""

    tokenizer: "ModelTokenizer"
    template: ChatTemplate | None

    @classmethod
    def load(cls, files: ModelFiles, template_path: str | None) -> "ServedModel":
        """Read the tokenizer and compile the template, the model's or that of `template_path`.

        Raises the models package's errors, OSError for the path, `TemplateInvalid`.
        """
        # Imported here, in a thread: its imports take longer than those of the web server.
        from pagefleet_engine.models.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(files)
        source = tokenizer.chat_template if template_path is None else Path(template_path).read_text(encoding="utf-8")
        if source is None:
            return cls(tokenizer, None)
        return cls(tokenizer, ChatTemplate(source, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token))

    def chat_tokens(self, messages: Sequence[dict[str, Any]]) -> TokenIds:
        """The conversation's tokens up to where the answer begins; raises `InvalidRequest`."""
        if self.template is None:
            raise InvalidRequest(
                "This model has no chat template. Start the engine with --chat-template PATH, or use /v1/completions.",
                param="messages",
            )
        return tuple(self.tokenizer.encode(self.template.render(plain_messages(messages)), add_special=False))

    def prompt_tokens(self, prompt: Prompt) -> TokenIds:
        """A completion prompt's tokens; raises `InvalidRequest` for token ids that the model does not have."""
        if isinstance(prompt, str):
            return tuple(self.tokenizer.encode(prompt, add_special=True))
        largest = max(prompt)
        if largest >= self.tokenizer.vocab_size:
            raise InvalidRequest(
                f"prompt holds the token id {largest}; this model's are 0 to {self.tokenizer.vocab_size - 1}",
                param="prompt",
            )
        return prompt

    def prompt_text(self, prompt: Prompt) -> str:
        """A completion prompt as `echo` shows it."""
        return prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt, skip_special=True)
