"""Computes a step: owns the weights and the KV memory."""
