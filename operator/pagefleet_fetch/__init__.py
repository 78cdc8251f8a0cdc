"""Brings a model's files from where they are published into a folder: verified, resumable, all or nothing."""
