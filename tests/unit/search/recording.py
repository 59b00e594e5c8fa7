"""A recording of tensor operations on the CPU that behaves as a CUDA graph does.

What is replayed are the operations on the same memory: numbers, branches and shapes of the moment
of recording stay what they were.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nmtgrid.search.cuda_graphs import Replay

Operation = tuple[Callable[..., Any], Any, dict[str, Any], Any]


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.done: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        assert func is not torch.ops.aten._local_scalar_dense.default, "the device was waited for"
        self.done.append((func, args, kwargs, results))
        return results


class Recordings:
    """A `record` for `Graphs`, and what it has recorded and replayed."""

    def __init__(self) -> None:
        self.count = self.replayed = 0

    def __call__(self, fn: Callable[[], None], prepare: Callable[[], None]) -> Replay:
        """Return the replay of `fn`, which is run before, as libraries on a GPU need it."""
        self.count += 1
        for _ in range(2):
            prepare()
            fn()
        prepare()
        with torch.no_grad(), _Recorder() as recorder:
            fn()

        def replay() -> None:
            self.replayed += 1
            for operation in recorder.done:
                _again(*operation)

        return replay


def _again(func: Callable[..., Any], args: Any, kwargs: dict[str, Any], results: Any) -> None:
    """Run an operation again, and put what it returns where it was."""
    inputs = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))}
    for old, new in zip(_tensors(results), _tensors(func(*args, **kwargs)), strict=True):
        if old.untyped_storage().data_ptr() not in inputs:
            old.copy_(new)


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
