"""Decoding steps as CUDA graphs: recorded once for each shape, then replayed with one launch.

A step of a few rows consists of hundreds of small kernels, which take longer to launch than to run
(`benchmarks/decoding_speed.py` measures it). A recording contains addresses, so all tensors that it
reads and writes must stay in place: a `_Slot` has buffers for one shape of search, which successive
searches use. There are few shapes: rows are padded to a power of two of groups, sources to a
multiple of eight tokens, tokens so far to a power of two. Padding rows repeat the first row and are
dead. A search whose sentences finish moves to fewer rows only while rows take longer to compute
than kernels to launch: `benchmarks/recordings.py` counts what other rules record and compute.

A recording covers a whole step of a search (`SearchStep` of steps.py): the models, with caches that
read their position from a tensor (layers/static_cache.py), the constraints, the selection and the
bookkeeping. Searches whose states have no such static form run without recordings. The weights of a
model must not change while its recordings are in use, and only one search runs at a time.

A recording costs as much as several steps, so a shape is recorded only after it has occurred that
often. All recordings of a `Recorder` share their memory, so the results of a step are copied to the
buffers of its slot, whose total size is limited.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nmtgrid.base import console
from nmtgrid.base.devices import is_out_of_memory
from nmtgrid.base.rows import take
from nmtgrid.layers.static_cache import StaticPosition, tensors, write
from nmtgrid.search.beams import Groups, Rows, StepResult
from nmtgrid.search.constraints import Rules, StaticConstraint
from nmtgrid.search.steps import SearchStep
from nmtgrid.text.vocabulary import PAD

_EAGER_STEPS = 8
"""Steps of a shape before it is recorded: a recording costs about as much as these."""
_MOST_SLOTS = 64
"""Maximum number of shapes kept; the least recently used one is dropped."""
_MOST_BYTES = 2**32
"""Maximum total size of their buffers, in bytes."""
_LEAST_GROUPS = 4
_FREE_CELLS = 4096
"""Rows x source columns that a step computes in about the time that its kernels take to launch."""
_SOURCE_MULTIPLE = 8

Replay = Callable[[], None]
Record = Callable[[Callable[[], None], Callable[[], None]], Replay]
"""Takes the function to record and one to call before each of its runs, and returns the replay."""
T = TypeVar("T")


class _CastWeights(TorchDispatchMode):
    """Casts each parameter once, like autocast's cache, but keeps the results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # The parameter is kept as well, so that its id cannot be reused.
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
        if not self.is_recording:  # while recording, new tensors are in memory that is shared
            self._casts[key] = base, cast
        return cast


class Recorder:
    """Records functions on one GPU as CUDA graphs, which replay one after the other.

    They all use one stream of that GPU: libraries keep memory for each stream, and torch's default
    stream for recording belongs to whichever GPU recorded first in this process.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None
        self._weights = _CastWeights()

    def __call__(self, fn: Callable[[], None], prepare: Callable[[], None]) -> Replay:
        """Return the replay of `fn`; `prepare` undoes what running it has changed."""
        with torch.cuda.device(self._device):  # streams and recordings use the current device
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
                    # Warm-up runs, in which libraries choose their kernels.
                    for _ in range(2):
                        prepare()
                        fn()
                    prepare()
                    self._capture(graph, fn)
                current.wait_stream(self._stream)
            finally:
                # A recording that fails may not have left its stream.
                torch.cuda.set_stream(current)
        return graph.replay

    def _capture(self, graph: torch.cuda.CUDAGraph, fn: Callable[[], None]) -> None:
        # Not with `torch.cuda.graph`, which synchronises and frees all cached memory of the GPU.
        # Other threads may keep pinning memory meanwhile.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        self._weights.is_recording = True
        try:
            fn()
        except BaseException:
            # The first error is more informative than that the recording is invalid.
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            raise
        finally:
            self._weights.is_recording = False
        graph.capture_end()


class Graphs:
    """The recordings of one or several models, for searches that run one after the other."""

    def __init__(self, record: Record) -> None:
        """`record` makes a replay of a step, and may run it several times."""
        self._record = record
        self._slots: dict[Any, _Slot] = {}
        self._position: StaticPosition | None = None

    @staticmethod
    def pad_source(source: Tensor) -> Tensor:
        """Return source [B, S] padded to a common width; pictures are returned unchanged."""
        if source.dim() != 2:
            return source
        return torch.nn.functional.pad(source, (0, -source.shape[1] % _SOURCE_MULTIPLE), value=PAD)

    @staticmethod
    def can_record(states: Sequence[Any], rules: Rules) -> bool:
        """Return whether a search with these can be recorded once its caches exist."""
        has_form = all(hasattr(state, "to_static") for state in states)
        return has_form and all(isinstance(rule, StaticConstraint) for rule in rules.constraints)

    def begin(
        self,
        fn: SearchStep,
        states: Sequence[Any],
        rows: Rows,
        groups: Groups,
        rules: Rules,
        copies: int,
        columns: int,
    ) -> RecordedSearch | None:
        """Return the recorded form of a search with steps `fn`; None if it has no static form yet.

        `rules` are those of all sentences, each of which began as `copies` groups; the longest
        source has `columns` tokens.
        """
        width = fn.select.width
        # A beam begins with one row per sentence; its groups are complete from the second step on.
        if len(rows.tokens) != len(groups.numbers) * width:
            return None
        position = self._position = self._position or StaticPosition(rows.tokens.device)

        def to_static(index: Tensor) -> tuple[Any, ...] | None:
            static = tuple(state.to_static(position, index, width) for state in states)
            return None if None in static else static

        search = RecordedSearch(self, fn, rules, copies, columns, position)
        return search if search.enter(to_static, rows, groups) else None

    def slot(
        self, fn: SearchStep, states: tuple[Any, ...], rows: Rows, groups: Groups, rules: Rules
    ) -> _Slot:
        """Return the slot for these shapes, with these values; a new slot uses the tensors."""
        values = states, rows, groups, rules
        shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors(values))
        is_autocast = torch.is_autocast_enabled(rows.tokens.device.type)
        key = (fn, tuple(map(type, rules.constraints)), is_autocast, shapes)
        # Removed and reinserted at the end: the dict is in the order of use.
        slot = self._slots.pop(key, None)
        if slot is None:
            slot = _Slot(fn, *values)
        else:
            write(slot.values, values)
        self._slots[key] = slot
        size = sum(kept.bytes for kept in self._slots.values())
        while len(self._slots) > 1 and (len(self._slots) > _MOST_SLOTS or size > _MOST_BYTES):
            size -= self._slots.pop(next(iter(self._slots))).bytes
        return slot

    def with_memory(self, fn: Callable[[], T]) -> T:
        """Return `fn()`; if memory runs out, drop all slots and try once more."""
        try:
            return fn()
        except RuntimeError as fault:
            if not self._slots or not is_out_of_memory(fault):
                raise
        # Outside the handler, whose traceback would keep tensors alive.
        self._slots.clear()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        return fn()

    def record(self, fn: Callable[[], None], prepare: Callable[[], None]) -> Replay:
        """Return the replay of `fn`, or `fn` itself if it cannot be recorded."""
        try:
            return self.with_memory(lambda: self._record(fn, prepare))
        except RuntimeError as fault:
            why = str(fault).strip().partition("\n")[0]
            console.warn(f"cuda-graphs: steps of decoding are not recorded ({why}).")
            self._record = lambda fn, prepare: fn
            return fn


class _Slot:
    """Buffers at fixed addresses for one shape of a search, and the replay that uses them."""

    def __init__(
        self, fn: SearchStep, states: tuple[Any, ...], rows: Rows, groups: Groups, rules: Rules
    ) -> None:
        self.fn, self.states, self.rows, self.groups, self.rules = fn, states, rows, groups, rules
        self.bytes = sum(tensor.nbytes for tensor in tensors(self.values))
        self.alignment: Tensor | None = None
        self._steps = 0
        self._replay: Replay | None = None

    @property
    def values(self) -> tuple[Any, ...]:
        """All buffers."""
        return self.states, self.rows, self.groups, self.rules

    def run(self, record: Record, index: Tensor) -> None:
        """Run a step at the position in `index` [1], which must always be the same tensor."""
        self._steps += 1
        if self._replay is None and self._steps > _EAGER_STEPS:
            self._replay = self._recorded(record, index)
        (self._replay or functools.partial(self._step, index))()

    def _recorded(self, record: Record, index: Tensor) -> Replay:
        unmoved = torch.arange(len(self.rows.tokens), device=index.device)
        every_group = unmoved[: len(self.groups.numbers)]
        rows, groups = take(self.rows, unmoved), take(self.groups, every_group)
        # Recording runs the step several times: each run writes the same states if all start from
        # the same values and rows do not move.
        still = dataclasses.replace(rows, parents=unmoved)
        replay = record(
            functools.partial(self._step, index),
            lambda: write((self.rows, self.groups), (still, groups)),
        )
        write((self.rows, self.groups), (rows, groups))
        return replay

    def _step(self, index: Tensor) -> None:
        if self.fn.select.width > 1:
            write(self.states, take(self.states, self.rows.parents))
        following = self.fn(self.states, self.rows, self.groups, self.rules, index)
        if self.alignment is None and following.alignment is not None:
            self.alignment = torch.empty_like(following.alignment)
        buffers = StepResult(self.rows, self.groups, self.alignment)
        for buffer, value in zip(tensors(buffers), tensors(following), strict=True):
            if value is not buffer:
                buffer.copy_(value)


class RecordedSearch:
    """A search that runs in a slot, and moves to another one when its shapes change."""

    slot: _Slot

    def __init__(
        self,
        graphs: Graphs,
        fn: SearchStep,
        rules: Rules,
        copies: int,
        columns: int,
        position: StaticPosition,
    ) -> None:
        self.graphs, self.fn, self.rules, self.copies = graphs, fn, rules, copies
        self.position = position
        free = _FREE_CELLS // (fn.select.width * columns)
        # The largest power of two up to `free`, but not below `_LEAST_GROUPS`.
        self._least_groups = max(_LEAST_GROUPS, 1 << free.bit_length() >> 1)

    def enter(
        self,
        move: Callable[[Tensor], tuple[Any, ...] | None],
        rows: Rows,
        groups: Groups,
        least: int = _LEAST_GROUPS,
    ) -> bool:
        """Continue with `rows` and `groups`; return False if `move` has no states for them.

        `move` returns the states of rows [R'], including padding to at least `least` groups.
        """
        count, device, width = len(groups.numbers), rows.tokens.device, self.fn.select.width
        index = pad_groups(torch.arange(len(rows.tokens), device=device), width, least)
        states = self.graphs.with_memory(lambda: move(index))
        if states is None:
            return False
        groups = take(groups, pad_groups(torch.arange(count, device=device), 1, least))
        # The number of padding groups is above those of all other groups.
        sentences = groups.numbers // self.copies
        groups.numbers[count:] = len(self.rules.limits) * self.copies
        live, rows = len(rows.tokens), take(rows, index)
        rows.log_probabilities[live:] = -math.inf
        # The states have already been reordered.
        rows = dataclasses.replace(rows, parents=torch.arange(len(index), device=device))
        rules = take(self.rules, sentences)
        self.slot = self.graphs.slot(self.fn, states, rows, groups, rules)
        return True

    def step(self, step: int) -> StepResult:
        """Run the step after `step` tokens; return copies for the tree of prefixes, and buffers."""
        slot = self.slot
        states = self.graphs.with_memory(
            lambda: tuple(state.with_room(step) for state in slot.states)
        )
        if any(new is not old for new, old in zip(states, slot.states, strict=True)):
            self.slot = slot = self.graphs.slot(self.fn, states, *slot.values[1:])
        self.position.move(step)
        slot.run(self.graphs.record, self.position.index)
        rows = dataclasses.replace(
            slot.rows,
            tokens=slot.rows.tokens.clone(),
            parents=slot.rows.parents.clone(),
            log_probabilities=slot.rows.log_probabilities.clone(),
        )
        alignment = None if slot.alignment is None else slot.alignment.clone()
        return StepResult(rows, slot.groups, alignment)

    def is_worth_dropping(self, going: int) -> bool:
        """Return whether `going` groups fit a smaller slot in which a step takes less time."""
        return count_padded(going, self._least_groups) < len(self.slot.groups.numbers)

    def drop(self, rows: Rows, groups: Groups) -> None:
        """Continue with only `rows` and `groups`, the remaining ones of this search."""
        states, parents = self.slot.states, rows.parents
        self.enter(lambda index: take(states, parents[index]), rows, groups, self._least_groups)


def pad_groups(rows: Tensor, width: int, least: int = _LEAST_GROUPS) -> Tensor:
    """Return `rows` padded with zeros to a power of two of groups of `width`, at least `least`."""
    groups = count_padded(len(rows) // width, least)
    return torch.nn.functional.pad(rows, (0, groups * width - len(rows)))


def count_padded(groups: int, least: int) -> int:
    """Return the number of groups after padding `groups` to a power of two, at least `least`."""
    return max(least, 1 << (groups - 1).bit_length())
