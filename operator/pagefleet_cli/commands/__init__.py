"""One module a command: its options, and a call into the part that does the work."""
