"""The runner for NVIDIA GPUs: sequences' state on the device, steps launched ahead, decode steps as CUDA graphs."""
