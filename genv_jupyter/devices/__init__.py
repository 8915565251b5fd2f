"""Devices: what NVML (or a simulation) says about the GPUs of this host."""
