"""Which block of KV memory holds which tokens; pure bookkeeping, the memory itself is the runner's."""
