"""Tensors on the pretend GPU, counts of their operations, and recordings."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import torch._dynamo  # by optimisers, and it refuses functions that stand in two places
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map

CUDA = torch.device("cuda", 0)

VIEWS = frozenset({
    "view", "_unsafe_view", "reshape", "alias", "detach", "detach_", "t", "transpose", "permute",
    "expand", "slice", "select", "unsqueeze", "squeeze", "split", "split_with_sizes", "unbind",
    "as_strided", "narrow", "unfold", "diagonal", "chunk", "lift_fresh", "lift", "empty",
    "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_",
    "_reshape_alias", "is_pinned", "t_", "squeeze_", "unsqueeze_", "transpose_", "as_strided_",
    "_fused_sdp_choice", "record_stream", "unsafe_split", "unsafe_chunk", "real", "is_same_size",
    "_has_compatible_shallow_copy_type",
})  # fmt: skip
"""Operators that launch nothing."""
WAITS = frozenset({
    "_local_scalar_dense", "item", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2",
    "unique_consecutive", "unique_dim", "_unique", "allclose", "bincount",
})  # fmt: skip
"""Operators that make the host wait for the device."""
MAY_MIX = frozenset({
    "_pack_padded_sequence", "index", "index_put", "index_put_", "_index_put_impl_", "copy_",
    "_to_copy", "copy", "_unsafe_index", "_unsafe_index_put",
})  # fmt: skip
"""Operators that take tensors of both devices."""
KERNELS = {
    "_foreach_norm": 2, "_foreach_copy_": 2, "_fused_adamw_": 2, "_fused_adam_": 2,
    "native_layer_norm_backward": 2, "nonzero": 4, "index_put_": 4, "embedding_dense_backward": 5,
    "cumsum": 2, "sort": 4, "topk": 2,
}  # fmt: skip
"""Number of kernels of an operator, if more than one."""
PRODUCTS = frozenset({
    "addmm", "_addmm_activation", "mm", "bmm", "baddbmm", "convolution", "convolution_backward",
})  # fmt: skip
"""Operators that are slow in bf16 on many CPUs."""


@dataclasses.dataclass
class Counts:
    """The counts: kernels by operator, and other events by kind and line of code."""

    launches: Counter[str] = dataclasses.field(default_factory=Counter)
    waits: Counter[str] = dataclasses.field(default_factory=Counter)
    copies: Counter[str] = dataclasses.field(default_factory=Counter)
    """Copies to the device that block the host."""
    mixes: Counter[str] = dataclasses.field(default_factory=Counter)
    """Operators with tensors of both devices: errors on a GPU."""
    forbidden: Counter[str] = dataclasses.field(default_factory=Counter)
    """Waits and copies within recordings: errors on a GPU."""
    replayed: int = 0
    """Kernels launched by replays of recordings."""


class Device:
    """The state of the pretend GPU: the counts, and the recording in progress."""

    counts = Counts()
    graph: PretendGraph | None = None
    launched = 0
    """Total number of kernels."""
    arriving: ClassVar[list[tuple[Tensor, Tensor]]] = []
    """Host tensors to fill when the host waits for an event, with their values."""

    @classmethod
    def launch(cls, name: str, kernels: int) -> None:
        cls.launched += kernels
        cls.counts.launches[name] += kernels
        if cls.graph is not None:
            cls.graph.kernels += kernels

    @classmethod
    def wait(cls, what: str) -> None:
        cls._note(cls.counts.waits, what)

    @classmethod
    def copy(cls, what: str) -> None:
        cls._note(cls.counts.copies, what)

    @classmethod
    def mix(cls, what: str) -> None:
        cls.counts.mixes[f"{what} @ {_where()}"] += 1

    @classmethod
    def record(cls, fn: Callable[..., Any], args: Any, kwargs: Any, results: Any) -> None:
        """Keep an operation on tensors of the CPU if a recording is in progress."""
        if cls.graph is not None:
            cls.graph.keep(fn, args, kwargs, results)

    @classmethod
    def _note(cls, counter: Counter[str], what: str) -> None:
        message = f"{what} @ {_where()}"
        counter[message] += 1
        if cls.graph is not None:
            cls.counts.forbidden[message] += 1

    @classmethod
    @contextlib.contextmanager
    def counting(cls) -> Iterator[Counts]:
        """Reset the counts; yield the new ones."""
        cls.counts = Counts()
        yield cls.counts


def _where(depth: int = 3) -> str:
    """Return the innermost lines of the package in the current stack."""
    lines: list[str] = []
    frame = sys._getframe(1)
    while frame is not None and len(lines) < depth:
        path = frame.f_code.co_filename
        if "/nmtgrid/" in path and "/tests/" not in path:
            lines.append(f"{path.rpartition('/nmtgrid/')[2]}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(lines) or "torch"


class PretendTensor(torch.Tensor):
    """A tensor that says it is on the GPU; `data_on_cpu` are its values."""

    data_on_cpu: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> PretendTensor:
        tensor: PretendTensor = torch.Tensor._make_wrapper_subclass(
            cls, values.shape, values.stride(), values.storage_offset(),
            dtype=values.dtype, device=CUDA,
        )
        tensor.data_on_cpu = values
        return tensor

    def tolist(self) -> Any:
        if self.numel():
            Device.wait("tolist")
        return self.data_on_cpu.detach().tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"cannot convert a CUDA tensor to numpy @ {_where()}")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.numpy()

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _dispatch(func, args, kwargs or {})


class PretendGPU(TorchDispatchMode):
    """A mode in which operators that create tensors on `cuda` create them on the pretend GPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and guards against it take time at each operator."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


def on_gpu(value: Any) -> bool:
    """Return whether `value` is a tensor on the pretend GPU."""
    return isinstance(value, PretendTensor)


def on_cpu(value: Any) -> bool:
    """Return whether `value` is a tensor on the CPU."""
    return isinstance(value, Tensor) and not isinstance(value, PretendTensor)


def values(tree: Any) -> Any:
    """Return a nest of tensors with the values of those on the pretend GPU."""
    return _values(tree, [])


_PLAIN = frozenset({
    int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.Size,
})  # fmt: skip
"""Types that are neither nests nor tensors."""


def _values(tree: Any, tensors: list[Tensor]) -> Any:
    """Return the result of `values`; append the tensors of the nest to `tensors`."""
    kind = type(tree)
    if kind in _PLAIN:
        return tree
    if kind is tuple:
        return tuple([_values(item, tensors) for item in tree])
    if kind is list:
        return [_values(item, tensors) for item in tree]
    if kind is dict:
        return {key: _values(item, tensors) for key, item in tree.items()}
    if isinstance(tree, tuple):
        return tree_map(lambda leaf: _values(leaf, tensors), tree)
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return tree.data_on_cpu if isinstance(tree, PretendTensor) else tree
    return tree


def _moved(tree: Any, known: dict[int, PretendTensor]) -> Any:
    """Return a nest with its tensors moved to the GPU; `known` are existing GPU tensors by id."""
    if isinstance(tree, Tensor):
        if isinstance(tree, PretendTensor):
            return tree
        return known[id(tree)] if id(tree) in known else PretendTensor(tree)
    kind = type(tree)
    if kind is tuple or kind is list:
        return kind([_moved(item, known) for item in tree])
    return tree_map(lambda leaf: _moved(leaf, known), tree) if isinstance(tree, tuple) else tree


def run_on_cpu(name: str, kernels: int, fn: Callable[..., Any], *args: Any) -> Any:
    """Return `fn(*args)` on the pretend GPU, for which a library or Triton has `kernels`."""
    Device.launch(name, kernels)
    unwrapped = values(args)
    with _disable_current_modes():
        results = fn(*unwrapped)
    Device.record(fn, unwrapped, {}, results)
    return _moved(results, {})


def _dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors: list[Tensor] = []
    args_on_cpu = _values(args, tensors)
    kwargs_on_cpu = _values(kwargs, tensors) if kwargs else {}
    device = kwargs.get("device")
    to_gpu = device is not None and torch.device(device).type == "cuda"
    known = {id(leaf.data_on_cpu): leaf for leaf in tensors if isinstance(leaf, PretendTensor)}
    if not to_gpu and not known:
        return func(*args, **kwargs)
    name = _name(func)
    if name == "_to_copy":
        moved = _move(func, args[0], kwargs, to_gpu)
        if moved is not None:
            return moved
    _look_for_waits(name, args, kwargs)
    if len(known) < len(tensors) and name not in MAY_MIX and not name.startswith("_fused_adam"):
        mixed = [tuple(leaf.shape) for leaf in tensors if on_cpu(leaf) and leaf.dim()]
        if mixed:
            Device.mix(f"{name} of {mixed} on the CPU")
    _check_types(name, args)
    if name not in VIEWS:
        kernels = 1 if _writes_a_number(name, args) else KERNELS.get(name, 1)
        Device.launch(name, kernels + KERNELS["nonzero"] * len(_masks(name, args)))
    kwargs_on_cpu.pop("non_blocking", None)
    if device is not None:
        kwargs_on_cpu["device"] = torch.device("cpu")
    results = _compute(func, name, args_on_cpu, kwargs_on_cpu)
    if name == "_local_scalar_dense":
        return results
    if name == "_pack_padded_sequence":
        return PretendTensor(results[0]), results[1]
    if name == "copy_" and on_cpu(args[0]):
        return args[0]
    # A tensor that is written in place or as `out` is returned as the same object.
    return _moved(results, known)


@functools.cache
def _name(func: Any) -> str:
    name: str = func._schema.name.split("::")[1]
    return name


def _compute(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on tensors of the CPU; keep it if a recording is in progress."""
    if name in PRODUCTS and all(leaf.dtype is torch.bfloat16 for leaf in _tensors(args)):
        func = in_fp32(func)
    results = func(*args, **kwargs)
    if name != "_local_scalar_dense" and not name.startswith(("empty", "new_empty")):
        Device.record(func, args, kwargs, results)
    return results


def in_fp32(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fn` computed in fp32, as in kernels; results have the type of the first argument."""

    def cast(tree: Any, dtype: torch.dtype) -> Any:
        if isinstance(tree, Tensor):
            return tree.to(dtype) if tree.is_floating_point() else tree
        return tuple([cast(item, dtype) for item in tree]) if isinstance(tree, tuple) else tree

    def widened(*args: Any, **kwargs: Any) -> Any:
        return cast(fn(*cast(args, torch.float32), **kwargs), args[0].dtype)

    return widened


def _move(func: Any, source: Tensor, kwargs: dict[str, Any], to_gpu: bool) -> Any:
    """Return a tensor copied between the devices; None if it stays on its device."""
    device = kwargs.get("device")
    if on_gpu(source) and device is not None and not to_gpu:
        if kwargs.get("non_blocking"):
            host = torch.full_like(values(source), math.nan)
            Device.arriving.append((host, values(source).clone()))
            return host
        Device.wait("copy to the CPU")
        return func(values(source), **kwargs)
    if on_cpu(source) and to_gpu:
        if not kwargs.get("non_blocking"):
            Device.copy(f"copy of {tuple(source.shape)}")
        elif Device.graph is not None:
            Device.counts.forbidden[f"copy of {tuple(source.shape)} @ {_where()}"] += 1
        kept = {key: value for key, value in kwargs.items() if key != "non_blocking"}
        moved = func(source, **{**kept, "device": torch.device("cpu")})
        return PretendTensor(moved.clone() if moved is source else moved)
    return None


def _look_for_waits(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if name in WAITS:
        Device.wait(name)
    if name == "repeat_interleave" and kwargs.get("output_size") is None:
        Device.wait("repeat_interleave without output_size")
    if name == "copy_":
        if on_cpu(args[0]):
            Device.wait("copy to the CPU")
        elif on_cpu(args[1]) and not (kwargs.get("non_blocking") or args[2:3] == (True,)):
            Device.copy(f"copy of {tuple(args[1].shape)}")
    for _ in _masks(name, args):
        Device.wait(f"{name} by a mask")
    if name in _INDEXING:
        for index in args[1]:
            if on_cpu(index) and on_gpu(args[0]):
                Device.copy(f"index of {tuple(index.shape)}")


_INDEXING = ("index", "index_put", "index_put_", "_unsafe_index")


def _masks(name: str, args: tuple[Any, ...]) -> list[Tensor]:
    """Return the masks that `nonzero` turns into positions, whose number the host must know."""
    if name not in _INDEXING or _writes_a_number(name, args):
        return []
    kinds = (torch.bool, torch.uint8)
    return [index for index in args[1] if index is not None and index.dtype in kinds]


def _check_types(name: str, args: tuple[Any, ...]) -> None:
    """Refuse combinations of types in normalisation that CUDA kernels do not support."""
    if not name.startswith(("native_batch_norm", "native_layer_norm")):
        return
    shift = 1 if name.endswith("backward") else 0
    features, others = args[shift], [leaf for leaf in args[shift + 1 :] if on_gpu(leaf)]
    kinds = {leaf.dtype for leaf in others} or {features.dtype}
    allowed = {features.dtype}
    if "batch" in name and features.dtype is torch.bfloat16:
        allowed = {features.dtype, torch.float32}
    if "layer" in name and name.endswith("backward"):
        return  # statistics are in float32
    if len(kinds) > 1 or not kinds <= allowed:
        Device.mix(f"{name} of {features.dtype} and {sorted(map(str, kinds))}")


def _writes_a_number(name: str, args: tuple[Any, ...]) -> bool:
    """Return whether one number is written at positions or under a mask, with one kernel."""
    return name.startswith("index_put") and args[2].numel() == 1 and not (args[3:] and args[3])


class PretendEvent:
    """An event: the wait of the host is useless if the device then has nothing to do."""

    def record(self) -> None:
        self.arriving, Device.arriving = Device.arriving, []
        self.launched = Device.launched

    def synchronize(self) -> None:
        if Device.launched == self.launched:
            Device.wait("event with nothing launched behind it")
        for host, device_values in self.arriving:
            host.copy_(device_values)


Operation = tuple[Callable[..., Any], Any, dict[str, Any], list[Tensor | None]]
"""A function, its arguments, and the tensors for its results: None for results in its arguments."""


class PretendGraph:
    """A CUDA graph on the pretend GPU: replays the recorded operations on the same memory."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.operations: list[Operation] = []
        self.kernels = 0

    def keep(self, fn: Callable[..., Any], args: Any, kwargs: Any, results: Any) -> None:
        """Keep an operation, unless it only returns views."""
        inputs = {leaf.untyped_storage().data_ptr() for leaf in _tensors((args, kwargs))}
        new = [
            None if leaf.untyped_storage().data_ptr() in inputs else leaf
            for leaf in _tensors(results)
        ]
        may_write = not isinstance(fn, torch._ops.OpOverload) or fn._schema.is_mutable
        if may_write or any(leaf is not None for leaf in new):
            self.operations.append((fn, args, kwargs, new))

    def capture_begin(self, *_: Any, **__: Any) -> None:
        assert Device.graph is None
        Device.graph = self

    def capture_end(self) -> None:
        Device.graph = None

    def reset(self) -> None:
        self.operations.clear()

    def replay(self) -> None:
        Device.launch("replay", 1)
        Device.counts.replayed += self.kernels
        with torch.no_grad(), _disable_current_modes():
            for fn, args, kwargs, kept in self.operations:
                for old, new in zip(kept, _tensors(fn(*args, **kwargs)), strict=True):
                    if old is not None:
                        old.copy_(new)


def _tensors(tree: Any) -> list[Tensor]:
    tensors: list[Tensor] = []
    _values(tree, tensors)
    return tensors


def install() -> None:
    """Install the pretend GPU in torch, after stub.py has run; this cannot be undone."""
    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)

    def nothing(*_: Any, **__: Any) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()

    replaced: dict[str, Any] = {
        "_lazy_init": nothing, "_is_in_bad_fork": lambda: False, "is_initialized": lambda: False,
        "is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0,
        "is_bf16_supported": lambda *_, **__: True, "get_device_capability": lambda *_: (9, 0),
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8), "set_rng_state": nothing,
        "get_device_name": lambda *_: "pretend GPU", "mem_get_info": lambda *_: (2**33, 2**34),
        "memory_reserved": lambda *_: 2**30, "memory_allocated": lambda *_: 2**29,
        "max_memory_allocated": lambda *_: 2**30,
        "reset_peak_memory_stats": nothing, "set_sync_debug_mode": nothing,
        "set_device": nothing, "synchronize": lambda *_: Device.wait("synchronize"),
        "empty_cache": nothing, "device_of": nothing, "device": nothing, "stream": nothing,
        "set_stream": nothing, "Stream": lambda *_, **__: stream,
        "current_stream": lambda *_: stream, "CUDAGraph": PretendGraph, "Event": PretendEvent,
        "graph_pool_handle": lambda: (0, 1),
    }  # fmt: skip
    for name, value in replaced.items():
        setattr(torch.cuda, name, value)
    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign]
    tensor, as_tensor = torch.tensor, torch.as_tensor

    def placed(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def on_device(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
            result = data if on_gpu(data) else make(data, *args, **kwargs)
            is_gpu = device is not None and torch.device(device).type == "cuda"
            return result.to(CUDA) if is_gpu else result

        return on_device

    torch.tensor, torch.as_tensor = placed(tensor), placed(as_tensor)
    # Parameters become tensors of another class when a model moves to the device.
    torch.__future__.set_overwrite_module_params_on_conversion(True)
