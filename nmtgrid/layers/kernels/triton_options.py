"""Compiler options of all Triton kernels."""

OPTIONS = {"enable_fp_fusion": True}
"""Fused multiply-adds, which a later Triton disables by default.

Without them the arithmetic of the grid convolution doubles.
"""
