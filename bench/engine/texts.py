"""A token's id by the text that the completions API gives for it."""

from pagefleet_engine.models.source import ModelFiles
from pagefleet_engine.models.tokenizer import load_tokenizer


def ids_by_text(files: ModelFiles) -> dict[str, int]:
    """For every token of the model; bytes that are no text by themselves as `bytes:\\x..`."""
    tokenizer = load_tokenizer(files)
    return {text(tokenizer.token_bytes(token_id)): token_id for token_id in range(tokenizer.vocab_size)}


def text(raw: bytes) -> str:
    """As OpenAI writes a token."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
