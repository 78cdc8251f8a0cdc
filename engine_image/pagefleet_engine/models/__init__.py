"""Model files: where they are, what they say of themselves, their weights and their tokenizer."""
