"""Steps of decoding as CUDA graphs: recorded once for a shape, then replayed with one launch.

A step of a few rows is hundreds of small kernels, and launching them takes longer than they do
(`benchmarks/decoding_speed.py` measures it). A recording holds addresses, so all that it reads and
writes stays where it is: a `_Slot` has buffers for one shape of state, and searches come and go in
it. Shapes are few: rows are padded to a power of two of groups, sources to a multiple of eight
tokens, tokens so far to a power of two. Rows of padding repeat the first row and are cut off again.

What is recorded is `model.step` itself, with caches that read their position from a tensor
(layers/static_cache.py). States without such a form are stepped as ever. The weights of a model
must not change while its recordings are in use, and one search is run at a time.

A recording costs as much as some steps, so a shape is recorded only once it has come that often.
All recordings of a `Recorder` share their memory, which is why a step's outputs are copied out of
it; the buffers of slots are bounded in bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nmtgrid.base import console
from nmtgrid.base.devices import is_out_of_memory
from nmtgrid.base.rows import take
from nmtgrid.layers.static_cache import HasStaticForm, StaticPosition, tensors, write
from nmtgrid.models.api import Step, TranslationModel
from nmtgrid.text.vocabulary import PAD

_EAGER_STEPS = 8
"""Steps of a shape before it is recorded: a recording costs about as much as these."""
_MOST_SLOTS = 64
"""Shapes that are kept; the least recently used one is dropped."""
_MOST_BYTES = 2**32
"""Bytes of their buffers that are kept, at most."""
_LEAST_GROUPS = 4
_SOURCE_MULTIPLE = 8

Outputs = tuple[Tensor, Tensor | None]
"""Logits [R, V] and, where it is needed, the alignment [R, S]: overwritten by the next replay."""
StepFn = Callable[[], Outputs]
Record = Callable[[StepFn], StepFn]
T = TypeVar("T")


class _CastWeights(TorchDispatchMode):
    """Casts each parameter once: as autocast's cache does, but what it has cast stays."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # With the parameter, so that no other one can come to have its id.
        self._casts: dict[Any, tuple[nn.Parameter, Tensor]] = {}
        self.is_recording = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.ops.aten._to_copy.default or set(kwargs) != {"dtype"}:
            return func(*args, **kwargs)
        view = args[0]
        base = view if view._base is None else view._base
        if not isinstance(base, nn.Parameter):
            return func(*args, **kwargs)
        shape = tuple(view.shape), view.stride(), view.storage_offset()
        key = (id(base), shape, kwargs["dtype"])
        if key in self._casts:
            return self._casts[key][1]
        cast = func(*args, **kwargs)
        if not self.is_recording:  # what is made then lies in memory that recordings share
            self._casts[key] = base, cast
        return cast


class Recorder:
    """Records what computes on one GPU as CUDA graphs, which replay one after the other.

    All on one stream of that GPU: libraries keep memory for each stream, and the stream that torch
    would take is of whichever GPU recorded first in this process.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None
        self._weights = _CastWeights()

    def __call__(self, fn: StepFn) -> StepFn:
        """Return the replay of `fn`, which must not mind being run several times."""
        with torch.cuda.device(self._device):  # streams and recordings belong to the current one
            self._stream = self._stream or torch.cuda.Stream()
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            current = torch.cuda.current_stream()
            # A cast that autocast caches would be freed with its context, yet read by the graph.
            autocast = torch.autocast(
                "cuda",
                torch.get_autocast_dtype("cuda"),
                enabled=torch.is_autocast_enabled("cuda"),
                cache_enabled=False,
            )
            graph = torch.cuda.CUDAGraph()
            try:
                self._stream.wait_stream(current)
                with autocast, self._weights, torch.cuda.stream(self._stream):
                    # Run before it is recorded, so that libraries choose their kernels.
                    fn()
                    outputs = fn()
                    self._capture(graph, fn, outputs)
                current.wait_stream(self._stream)
            finally:
                # A recording that fails may not have left its stream.
                torch.cuda.set_stream(current)

        def replay() -> Outputs:
            graph.replay()
            return outputs

        return replay

    def _capture(self, graph: torch.cuda.CUDAGraph, fn: StepFn, outputs: Outputs) -> None:
        """Record `fn` and the copies of what it returns into `outputs`."""
        # Not by `torch.cuda.graph`: it waits for the GPU and gives all free memory back to it.
        # Other threads may go on pinning memory meanwhile.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        self._weights.is_recording = True
        try:
            for target, source in zip(outputs, fn(), strict=True):
                if target is not None and source is not None:
                    target.copy_(source)
        except BaseException:
            # What went wrong first says more than that the recording is none.
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            raise
        finally:
            self._weights.is_recording = False
        graph.capture_end()


class Graphs:
    """The recordings of one or several models, for searches that come one after the other."""

    def __init__(self, record: Record) -> None:
        """`record` makes a replay of a step, and may run it several times."""
        self._record = record
        self._slots: dict[Any, _Slot] = {}
        self._position: StaticPosition | None = None

    @staticmethod
    def pad_source(source: Tensor) -> Tensor:
        """Return source [B, S] padded to a width that comes often; pictures as they are."""
        if source.dim() != 2:
            return source
        return torch.nn.functional.pad(source, (0, -source.shape[1] % _SOURCE_MULTIPLE), value=PAD)

    def step(
        self,
        member: int,
        model: TranslationModel,
        tokens: Tensor,
        state: Any,
        width: int,
        align: bool,
    ) -> Step:
        """Do what `model.step` does, `model` being a search's `member` (from 0).

        Rows stand in groups of `width`, each of one sentence, unless the search has just begun.
        """
        if isinstance(state, _Rows):
            rows = state
        else:
            # A beam begins with one row a sentence; its groups are whole from the second step on.
            if not hasattr(state, "to_static") or len(tokens) % width:
                return model.step(tokens, state, align=align)
            self._position = self._position or StaticPosition(tokens.device)
            index = pad_groups(torch.arange(len(tokens), device=tokens.device), width)
            to_static = functools.partial(state.to_static, self._position, index, width)
            static = self.with_memory(to_static)
            if static is None:
                return model.step(tokens, state, align=align)
            slot = self.slot(member, model, static, width, len(index))
            at, count = self._position, len(tokens)
            rows = _Rows(self, member, slot, at, width, count, at.position)
        return rows.step(tokens, align)

    def slot(
        self, member: int, model: TranslationModel, state: HasStaticForm, width: int, rows: int
    ) -> _Slot:
        """Return the slot for the shape of `state`, holding its values."""
        shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors(state))
        device = next(tensors(state)).device.type
        key = (member, id(model), width, torch.is_autocast_enabled(device), shapes)
        # Taken out and put back at the end: the dict's order is that of use.
        slot = self._slots.pop(key, None)
        if slot is None:
            # Rows of a beam move at almost every step, so that is part of what is recorded.
            slot = _Slot(model, state, rows, moves=width > 1)
        else:
            write(slot.state, state)
        self._slots[key] = slot
        size = sum(kept.bytes for kept in self._slots.values())
        while len(self._slots) > 1 and (len(self._slots) > _MOST_SLOTS or size > _MOST_BYTES):
            size -= self._slots.pop(next(iter(self._slots))).bytes
        return slot

    def with_memory(self, fn: Callable[[], T]) -> T:
        """Return `fn()`, without the slots and once more where memory runs out."""
        try:
            return fn()
        except RuntimeError as fault:
            if not self._slots or not is_out_of_memory(fault):
                raise
        # Outside the handler: its traceback would keep what was computed alive.
        self._slots.clear()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        return fn()

    def record(self, fn: StepFn) -> StepFn:
        """Return the replay of `fn`, or itself where it cannot be recorded."""
        try:
            return self.with_memory(lambda: self._record(fn))
        except RuntimeError as fault:
            why = str(fault).strip().partition("\n")[0]
            console.warn(f"cuda-graphs: steps of decoding are not recorded ({why}).")
            self._record = lambda fn: fn
            return fn


class _Slot:
    """One shape of state: buffers at fixed addresses, and the replays that work on them."""

    def __init__(
        self, model: TranslationModel, state: HasStaticForm, rows: int, *, moves: bool
    ) -> None:
        self.model, self.state, self.moves = model, state, moves
        device = next(tensors(state)).device
        self.tokens = torch.zeros(rows, dtype=torch.long, device=device)
        self.parents = torch.arange(rows, device=device)
        self._unmoved = self.parents.clone()
        self.bytes = sum(tensor.nbytes for tensor in tensors(state))
        self._steps = 0
        self._replays: dict[bool, StepFn] = {}

    def move(self, parents: Tensor) -> None:
        """Put the rows `parents` [R] where the old ones are."""
        write(self.state, take(self.state, parents))

    def run(self, record: Record, parents: Tensor | None, align: bool) -> Outputs:
        """Take the rows `parents` [R] (None: they stay) where rows move, then step."""
        self._steps += 1
        if align not in self._replays and self._steps > _EAGER_STEPS:
            # Recording may run the step several times, so rows stay where they are till then.
            self.parents.copy_(self._unmoved)
            self._replays[align] = record(functools.partial(self._step, align))
        # The graph reads its inputs from these buffers, so they are filled, not replaced.
        if self.moves:
            self.parents.copy_(self._unmoved if parents is None else parents)
        return self._replays[align]() if align in self._replays else self._step(align)

    def _step(self, align: bool) -> Outputs:
        if self.moves:
            self.move(self.parents)
        step = self.model.step(self.tokens, self.state, align=align)
        return step.logits, step.alignment


@dataclasses.dataclass(frozen=True)
class _Rows:
    """The state of `count` rows that live in a slot; `parents` [R] are to be taken first."""

    graphs: Graphs
    member: int
    slot: _Slot
    static_position: StaticPosition
    width: int
    count: int
    position: int
    parents: Tensor | None = None

    def take_rows(self, rows: Tensor) -> _Rows:
        """Return the state of `rows` [R']; it moves to a smaller slot where that is enough."""
        padded = pad_groups(rows, self.width)
        if self.parents is not None:
            padded = self.parents.index_select(0, padded)
        moved = dataclasses.replace(self, count=len(rows), parents=None)
        if len(padded) != len(self.slot.tokens):
            taken = self.graphs.with_memory(lambda: take(self.slot.state, padded))
            return moved._in_slot_of(taken, len(padded))
        if self.slot.moves:
            return dataclasses.replace(moved, parents=padded)
        self.slot.move(padded)
        return moved

    def step(self, tokens: Tensor, align: bool) -> Step:
        """Feed the last written tokens [R']."""
        with_room = functools.partial(self.slot.state.with_room, self.position)
        rows, state = self, self.graphs.with_memory(with_room)
        if state is not self.slot.state:
            rows = self._in_slot_of(state, len(self.slot.tokens))
        rows.static_position.move(rows.position)
        rows.slot.tokens[: self.count].copy_(tokens)
        logits, alignment = rows.slot.run(self.graphs.record, self.parents, align)
        following = dataclasses.replace(rows, position=self.position + 1, parents=None)
        shares = None if alignment is None else alignment[: self.count]
        return Step(logits[: self.count], following, shares)

    def _in_slot_of(self, state: HasStaticForm, rows: int) -> _Rows:
        """Return the same rows in the slot for the shape of `state`, of so many rows."""
        slot = self.graphs.slot(self.member, self.slot.model, state, self.width, rows)
        return dataclasses.replace(self, slot=slot)


def pad_groups(rows: Tensor, width: int) -> Tensor:
    """Return `rows` with zeros behind, so that groups of `width` are a power of two."""
    groups = max(_LEAST_GROUPS, 1 << (len(rows) // width - 1).bit_length())
    return torch.nn.functional.pad(rows, (0, groups * width - len(rows)))
