"""Probe points: modules whose inputs or outputs can be recorded.

Models list theirs in `points()`; analysis/activations.py hooks them.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from torch import nn

Kind = Literal["state", "change", "inside"]


@dataclasses.dataclass(frozen=True)
class ProbePoint:
    """The output of `part`, or the first of its inputs: a tensor [..., D].

    A "state" is what one layer passes on to the next, a "change" what a layer computes before a
    skip connection takes it in, and anything else lies "inside".
    """

    part: nn.Module
    kind: Kind = "state"
    side: Literal["output", "input"] = "output"
