"""Kernels: operations with their own backward passes; benchmarks/kernels.py measures most."""
