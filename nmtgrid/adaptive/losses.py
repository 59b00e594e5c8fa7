"""Distributions over exits, and what they lose against an oracle's choice (section 5.3).

Logits of a family over N exits: "sequence" and "multinomial" [..., N], normalised by softmax, Eq.
(5.11) and (5.19); "geometric" [..., N - 1], whose sigmoid chi_n is the chance of stopping after
block n, Eq. (5.20). Exits count from 1.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

Family = Literal["sequence", "multinomial", "geometric"]
"""Families of distributions over exits."""


def exit_log_probabilities(logits: Tensor, family: Family) -> Tensor:
    """Return log q(n) [..., N] of each exit, in float32 at least.

    Departs: in (5.21) the product of having gone on runs over n' < n, and over all n' < N for N.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if family != "geometric":
        return logits.log_softmax(-1)
    gone_on = pad(logsigmoid(-logits).cumsum(-1), (1, 0))
    return gone_on + pad(logsigmoid(logits), (0, 1))


def exit_loss(logits: Tensor, exits: Tensor, family: Family) -> Tensor:
    """Return H(q*, q) [...] in nats, q* being all on the oracle's `exits` [...]. Eq. (5.9)."""
    return -exit_log_probabilities(logits, family).gather(-1, exits[..., None] - 1)[..., 0]


def predicted_exits(logits: Tensor, family: Family, threshold: float = 0.5) -> Tensor:
    """Return the exits [...] that are taken: the likeliest, or the first chi above `threshold`."""
    if family != "geometric":
        return logits.argmax(-1) + 1
    stops = pad(logits.float().sigmoid() > threshold, (0, 1), value=True)
    return stops.to(torch.int8).argmax(-1) + 1
