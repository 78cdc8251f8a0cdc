"""Kernels compiled before there is a GPU: the engine is started for one that is not there; what it compiled is kept."""
