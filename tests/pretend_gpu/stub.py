"""Compiles and loads device_stub.cpp before torch is imported, which looks up its hooks once."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path


def compiler() -> str | None:
    """Return the C++ compiler of this machine, or None."""
    return next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def load(folder: Path) -> None:
    """Compile the stub into `folder` and load it."""
    spec, program = importlib.util.find_spec("torch"), compiler()
    assert "torch" not in sys.modules and spec is not None and spec.origin and program
    torch, library = Path(spec.origin).parent, folder / "device_stub.so"
    subprocess.run(
        [program, "-O0", "-w", "-shared", "-fPIC", "-std=c++20", f"-I{torch}/include",
         str(Path(__file__).with_name("device_stub.cpp")), "-o", str(library),
         f"-L{torch}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch}/lib"],
        check=True,
    )  # fmt: skip
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
