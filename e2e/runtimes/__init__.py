"""Engines that are not ours, as images for the cluster in a box."""
