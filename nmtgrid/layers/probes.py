"""Probe points: modules whose inputs or outputs can be recorded.

Models list theirs in `points()`; analysis/activations.py and training/update.py hook them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from torch import nn

Kind = Literal["state", "change", "inside"]


@dataclasses.dataclass(frozen=True)
class ProbePoint:
    """The output of `part`, or the first of its inputs: a tensor [..., D].

    A "state" is passed from one layer to the next, a "change" is computed by a layer before a skip
    connection adds it, and anything else is "inside".
    """

    part: nn.Module
    kind: Kind = "state"
    side: Literal["output", "input"] = "output"


@contextlib.contextmanager
def hooked(points: Mapping[str, ProbePoint], receive: Callable[[str, Any], None]) -> Iterator[None]:
    """Within the context, call `receive` with the name of each point and its value.

    The context is for one forward pass: a part that both sides share (tied embeddings) has one name
    per call, in order.
    """
    names: defaultdict[tuple[nn.Module, str], list[str]] = defaultdict(list)
    for name, point in points.items():
        names[point.part, point.side].append(name)
    calls: Counter[tuple[nn.Module, str]] = Counter()

    def pass_on(module: nn.Module, side: str, values: Any) -> None:
        own = names[module, side]
        name = own[min(calls[module, side], len(own) - 1)]
        calls[module, side] += 1
        receive(name, values)

    handles = [
        module.register_forward_pre_hook(lambda part, inputs: pass_on(part, "input", inputs))
        if side == "input"
        else module.register_forward_hook(lambda part, _, output: pass_on(part, "output", output))
        for module, side in names
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
