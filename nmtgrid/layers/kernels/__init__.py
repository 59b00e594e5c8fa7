"""Kernels: operations with backward passes of their own; benchmarks/kernels.py measures most."""
