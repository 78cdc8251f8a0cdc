"""Triton kernels of the GPU engine: one module a family, each with the kernels and a typed launcher."""
