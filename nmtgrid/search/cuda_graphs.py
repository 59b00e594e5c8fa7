"""Steps of decoding as CUDA graphs: recorded once for a shape, then replayed with one launch.

A step of a few rows is hundreds of small kernels, and launching them takes longer than they do. A
recording holds addresses, so everything that it reads and writes stays where it is: a `_Slot` has
buffers for one shape of state, and searches come and go in it. Shapes are few: rows are made up to
a power of two of groups, sources to a multiple of eight tokens, tokens so far to a power of two.
Rows that make up the number repeat the first row and are cut off again.

What is recorded is `model.step` itself, with caches that are told their position by a tensor
(layers/static_cache.py). States without such a form are stepped as ever. The weights of a model
must not change while its recordings are in use, and one search is run at a time.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nmtgrid.base import console
from nmtgrid.base.rows import take
from nmtgrid.layers.static_cache import HasStaticForm, tensors, write
from nmtgrid.layers.static_position import StaticPosition
from nmtgrid.models.api import Step, TranslationModel
from nmtgrid.text.vocabulary import PAD

_MOST_SLOTS = 24
"""Shapes that are kept ready; the one not used for longest is dropped."""
_LEAST_GROUPS = 4
_SOURCE_STEP = 8

Outputs = tuple[Tensor, Tensor | None]
"""Logits [R, V] and, if asked, the alignment [R, S]: overwritten by the next replay."""
StepFn = Callable[[], Outputs]
Record = Callable[[StepFn], StepFn]


def graphs_for(device: torch.device) -> Graphs | None:
    """Return recordings for a GPU; None where nothing is gained."""
    return Graphs(_Recorder(device)) if device.type == "cuda" else None


class _Recorder:
    """Records what computes on one GPU as CUDA graphs.

    All on one stream of that GPU: libraries keep memory for each stream, and the stream that torch
    would take is of whichever GPU recorded first in this process.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._aside: torch.cuda.Stream | None = None

    def __call__(self, deed: StepFn) -> StepFn:
        """Return the replay of `deed`, which is run before, so that libraries choose their kernels.

        Doing it several times must not matter.
        """
        with torch.cuda.device(self._device):  # streams and recordings belong to the current one
            self._aside = self._aside or torch.cuda.Stream()
            current = torch.cuda.current_stream()
            try:
                return _record(deed, self._aside)
            finally:
                # A recording that fails may not have left its stream.
                torch.cuda.set_stream(current)


def _record(deed: StepFn, aside: torch.cuda.Stream) -> StepFn:
    # A cast that autocast remembers would be freed with its context, and the graph read it still.
    autocast = torch.autocast(
        "cuda",
        torch.get_autocast_dtype("cuda"),
        enabled=torch.is_autocast_enabled("cuda"),
        cache_enabled=False,
    )
    graph = torch.cuda.CUDAGraph()
    aside.wait_stream(torch.cuda.current_stream())
    with autocast, torch.cuda.stream(aside):
        deed()
        deed()
    torch.cuda.current_stream().wait_stream(aside)
    with autocast, torch.cuda.graph(graph, stream=aside):
        found = deed()

    def replay() -> Outputs:
        graph.replay()
        return found

    return replay


class Graphs:
    """The recordings of one or several models, for searches that come one after the other."""

    def __init__(self, record: Record) -> None:
        """`record` makes a replay of a step, and may do it several times."""
        self._record = record
        self._slots: dict[Any, _Slot] = {}
        self._place: StaticPosition | None = None

    @staticmethod
    def widened(source: Tensor) -> Tensor:
        """Return source [B, S] with padding to a width that comes often; pictures as they are."""
        if source.dim() != 2:
            return source
        return torch.nn.functional.pad(source, (0, -source.shape[1] % _SOURCE_STEP), value=PAD)

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
        rows: _Rows | None
        if isinstance(state, _Rows):
            rows = state
        else:
            rows = self._begin(member, model, tokens, state, width)
        return rows.step(tokens, align) if rows else model.step(tokens, state, align=align)

    def _begin(
        self, member: int, model: TranslationModel, tokens: Tensor, state: Any, width: int
    ) -> _Rows | None:
        """Return the rows of `state` in a slot, or None if it has no fixed form."""
        if not hasattr(state, "to_static") or len(tokens) % width:
            return None
        place = self._place = self._place or StaticPosition(tokens.device)
        rows = pad_groups(torch.arange(len(tokens), device=tokens.device), width)
        fixed = state.to_static(place, rows, width)
        if fixed is None:
            return None
        slot = self.slot(member, model, fixed, width, len(rows))
        return _Rows(self, member, slot, place, width, len(tokens), place.position)

    def slot(
        self, member: int, model: TranslationModel, state: HasStaticForm, width: int, rows: int
    ) -> _Slot:
        """Return the slot for the shape of `state`, holding its values."""
        shapes = tuple((tuple(held.shape), held.dtype) for held in tensors(state))
        device = next(tensors(state)).device.type
        key = (member, id(model), width, torch.is_autocast_enabled(device), shapes)
        slot = self._slots.pop(key, None)
        if slot is None:
            slot = _Slot(model, state, rows, moves=width > 1)
        else:
            write(slot.state, state)
        self._slots[key] = slot
        if len(self._slots) > _MOST_SLOTS:
            del self._slots[next(iter(self._slots))]
        return slot

    def record(self, deed: StepFn) -> StepFn:
        """Return the replay of `deed`, or itself where it cannot be recorded."""
        try:
            return self._record(deed)
        except RuntimeError as fault:
            why = str(fault).strip().partition("\n")[0]
            console.warn(f"cuda-graphs: steps of decoding are not recorded ({why}).")
            self._record = lambda deed: deed
            return deed


class _Slot:
    """One shape of state: what stays where it is, and the replays that work on it.

    In a beam rows move at almost every step, so moving them (`moves`) is part of what is recorded.
    """

    def __init__(
        self, model: TranslationModel, state: HasStaticForm, rows: int, *, moves: bool
    ) -> None:
        self.model, self.state, self.moves = model, state, moves
        device = next(tensors(state)).device
        self.tokens = torch.zeros(rows, dtype=torch.long, device=device)
        self.parents = torch.arange(rows, device=device)
        self._still = self.parents.clone()
        self._replays: dict[bool, StepFn] = {}

    def move(self, parents: Tensor) -> None:
        """Put the rows `parents` [R] where the old ones are."""
        write(self.state, take(self.state, parents))

    def run(self, record: Record, parents: Tensor | None, align: bool) -> Outputs:
        """Take the rows `parents` [R] (None: they stay) where rows move, then step."""
        if align not in self._replays:
            # Recording may run the step several times, so rows stay where they are till then.
            self.parents.copy_(self._still)
            self._replays[align] = record(functools.partial(self._once, align))
        if self.moves:
            self.parents.copy_(self._still if parents is None else parents)
        return self._replays[align]()

    def _once(self, align: bool) -> Outputs:
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
    place: StaticPosition
    width: int
    count: int
    position: int
    parents: Tensor | None = None

    def take_rows(self, rows: Tensor) -> _Rows:
        """Return the state of `rows` [R']; it moves to a smaller slot where that is enough."""
        taken = pad_groups(rows, self.width)
        if self.parents is not None:
            taken = self.parents.index_select(0, taken)
        moved = dataclasses.replace(self, count=len(rows), parents=None)
        if len(taken) != len(self.slot.tokens):
            return moved._in_slot_of(take(self.slot.state, taken), len(taken))
        if self.slot.moves:
            return dataclasses.replace(moved, parents=taken)
        self.slot.move(taken)
        return moved

    def step(self, tokens: Tensor, align: bool) -> Step:
        """Feed the last written tokens [R']."""
        held = self._with_room()
        self.place.move(self.position)
        held.slot.tokens[: self.count].copy_(tokens)
        logits, alignment = held.slot.run(self.graphs.record, self.parents, align)
        following = dataclasses.replace(held, position=self.position + 1, parents=None)
        shown = None if alignment is None else alignment[: self.count]
        return Step(logits[: self.count], following, shown)

    def _with_room(self) -> _Rows:
        state = self.slot.state.with_room(self.position)
        return self if state is self.slot.state else self._in_slot_of(state, len(self.slot.tokens))

    def _in_slot_of(self, state: HasStaticForm, rows: int) -> _Rows:
        """Return the same rows in the slot for the shape of `state`, of so many rows."""
        slot = self.graphs.slot(self.member, self.slot.model, state, self.width, rows)
        return dataclasses.replace(self, slot=slot)


def pad_groups(rows: Tensor, width: int) -> Tensor:
    """Return `rows` with zeros behind, so that groups of `width` are a power of two."""
    groups = max(_LEAST_GROUPS, 1 << (len(rows) // width - 1).bit_length())
    return torch.nn.functional.pad(rows, (0, groups * width - len(rows)))
