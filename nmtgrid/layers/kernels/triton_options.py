"""Compiler options of all Triton kernels."""

OPTIONS = {"enable_fp_fusion": True}
"""Fused multiply-adds, which later versions of Triton disable by default.

Without them the arithmetic of the grid convolution doubles.
"""
