"""A recording of tensor operations on the CPU that behaves as a CUDA graph does.

What is replayed are the operations on the same memory: numbers, branches and shapes of the moment
of recording stay what they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nmtgrid.search.cuda_graphs import Outputs, StepFn

Operation = tuple[Callable[..., Any], Any, dict[str, Any], Any]


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.done: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and write it down."""
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        assert func is not torch.ops.aten._local_scalar_dense.default, "the device was waited for"
        self.done.append((func, args, kwargs, found))
        return found


class Recordings:
    """A `record` for `Graphs`, and what it has recorded and replayed."""

    def __init__(self) -> None:
        self.made = self.replayed = 0

    def __call__(self, deed: StepFn) -> StepFn:
        """Return the replay of `deed`, which is run before, as libraries on a GPU need it."""
        self.made += 1
        deed()
        deed()
        with torch.no_grad(), _Recorder() as recorder:
            found = deed()

        def replay() -> Outputs:
            self.replayed += 1
            for operation in recorder.done:
                _again(*operation)
            return found

        return replay


def _again(func: Callable[..., Any], args: Any, kwargs: dict[str, Any], found: Any) -> None:
    """Run an operation again, and put what it returns where it was."""
    given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if _is(t)}
    for old, new in zip(tree_leaves(found), tree_leaves(func(*args, **kwargs)), strict=True):
        if _is(old) and old.untyped_storage().data_ptr() not in given:
            old.copy_(new)


def _is(value: object) -> bool:
    return isinstance(value, Tensor)
