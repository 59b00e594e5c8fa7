"""Triton without a GPU: its interpreter, mended, and its compiler for a GPU that is not there."""

import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu_code import compile_ahead, kernels

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"


def mend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter of Triton 3.6 count loops under NumPy 2.4.

    It turns arrays of one element into numbers by int(), which NumPy now refuses.
    """
    if not INTERPRETED:
        return
    from triton.runtime import interpreter

    patch = getattr(interpreter, "_patch_lang_tensor", None)

    def patch_and_mend(tensor: Any, scope: Any) -> None:
        assert patch is not None
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    if patch is not None:
        monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_and_mend)


def assembly(name: str, kind: str, capability: int) -> str:
    """Compile a kernel of `benchmarks.gpu_code.kernels` for a GPU that need not be there.

    Raises AssertionError where it keeps anything in memory for want of registers, or leaves fused
    multiply-adds to Triton's default, of which Triton 3.9 warns.
    """
    (kernel,) = (kernel for kernel in kernels(kind) if kernel.name == name)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*FP_FUSION")
        code = compile_ahead(kernel, capability)
    assert code.spilled == 0
    return code.ptx


def run_interpreted(tests: Sequence[Path], project: Path, *more: str) -> str:
    """Return how tests in the interpreter ended, which must be chosen before Triton is imported."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, *more],
        cwd=project, env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.splitlines()[-1] if done.returncode == 0 else done.stdout + done.stderr
