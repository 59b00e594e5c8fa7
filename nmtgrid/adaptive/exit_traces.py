"""Records of what each exit would decide and write, for sentences whose output is given.

One pass of the model over each batch, teacher forced and with aligned states: decoding mixes states
of different exits, which these records do not know of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtgrid.adaptive.halting import no_predictor
from nmtgrid.data.batches import Batch
from nmtgrid.layers.kernels.linear import linear
from nmtgrid.models.api import Classifier, ExitModel, Sites, with_exits

Recorded = Literal["confidence", "geometric"]
"""Mechanisms that decide by thresholds."""

_CHUNK = 1024
"""Predictions classified at once: never [M, V] of a whole batch."""


@dataclasses.dataclass(frozen=True)
class Records:
    """M tokens, end symbols included, of a decoder with N exits.

    `sentence` [M] are the sentences' numbers, scores [M, N - 1] what is compared with thresholds,
    hits [M, N] whether an exit's likeliest token is the one that was forced, and agrees [M, N]
    whether it is the full stack's.
    """

    mechanism: Recorded
    sentence: NDArray[Any]
    scores: NDArray[Any]
    hits: NDArray[Any]
    agrees: NDArray[Any]

    def of(self, sentences: NDArray[Any]) -> Records:
        """Return the records of these sentences (numbers) alone."""
        kept = numpy.isin(self.sentence, sentences)
        return Records(
            self.mechanism, self.sentence[kept], self.scores[kept], self.hits[kept],
            self.agrees[kept],
        )  # fmt: skip


@torch.no_grad()
def record(
    model: ExitModel,
    batches: Iterable[Batch],
    mechanism: Recorded,
    *,
    bf16: bool = False,
    advance: Callable[[int, int], None] = lambda sentences, tokens: None,
) -> Records:
    """Return the records of batches whose targets are what is forced, `indices` their numbers.

    `advance` is told of each batch's sentences and tokens. Raises ConfigError for a model with one
    exit, or where it has no network for this mechanism.
    """
    model = with_exits(model)
    if mechanism == "geometric" and model.traits.halting != "geometric":
        raise no_predictor(model, mechanism)
    parts: list[Records] = []
    for batch in batches:
        with torch.autocast(batch.source.device.type, torch.bfloat16, enabled=bf16):
            parts.append(_of_batch(model, batch, mechanism))
        advance(len(batch), len(parts[-1].sentence))
    columns = {
        name: numpy.concatenate([getattr(part, name) for part in parts])
        for name in ("sentence", "scores", "hits", "agrees")
    }
    return Records(mechanism, **columns)


def _of_batch(model: ExitModel, batch: Batch, mechanism: Recorded) -> Records:
    sites = Sites.offline(batch)
    targets = batch.target_output[sites.sentence, sites.position]
    states = model.exit_features(batch, sites)
    judged = [judge(state, model.classifier(exit)) for exit, state in enumerate(states, 1)]
    tokens = torch.stack([token for token, _ in judged], 1)
    if mechanism == "confidence":
        scores = torch.stack([largest for _, largest in judged[:-1]], 1)
    else:
        scores = model.halting_logits(batch, states).float().sigmoid()
    return Records(
        mechanism,
        batch.indices[sites.sentence].cpu().numpy(),
        scores.cpu().numpy(),
        (tokens == targets[:, None]).cpu().numpy(),
        (tokens == tokens[:, -1:]).cpu().numpy(),
    )


def judge(state: Tensor, held: Classifier) -> tuple[Tensor, Tensor]:
    """Return the likeliest token [M] of each state [M, D], and its probability. Eq. (5.18)."""
    tokens, largest = [], []
    for part in state.split(_CHUNK):
        bias = None if held.bias is None else held.bias.to(part.dtype)
        logits = linear(part, held.weight.to(part.dtype), bias).float()
        best, place = logits.max(1)
        tokens.append(place)
        largest.append((best - logits.logsumexp(1)).exp())
    return torch.cat(tokens), torch.cat(largest)
