"""Traces of what each exit would decide and predict, and their replay under thresholds.

One teacher-forced pass records, for every token, each exit's prediction and confidence; `replay`
then evaluates thousands of threshold vectors on these traces without decoding again. What differs
from decoding is that exits do not change the states of later tokens; `adaptive.tune` decodes the
best vectors to see what they truly give.
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
from nmtgrid.models.api import Classifier, ExitModel, PredictionSites, with_exits

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
        tokens = numpy.isin(self.sentence, sentences)
        return Records(
            self.mechanism, self.sentence[tokens], self.scores[tokens], self.hits[tokens],
            self.agrees[tokens],
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

    `advance` gets each batch's sentences and tokens. Raises ConfigError for a model with one
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
    sites = PredictionSites.offline(batch)
    targets = batch.target_output[sites.sentence, sites.position]
    states = model.exit_features(batch, sites)
    predictions = [predict(state, model.classifier(exit)) for exit, state in enumerate(states, 1)]
    tokens = torch.stack([token for token, _ in predictions], 1)
    if mechanism == "confidence":
        scores = torch.stack([largest for _, largest in predictions[:-1]], 1)
    else:
        scores = model.halting_logits(batch, states).float().sigmoid()
    return Records(
        mechanism,
        batch.indices[sites.sentence].cpu().numpy(),
        scores.cpu().numpy(),
        (tokens == targets[:, None]).cpu().numpy(),
        (tokens == tokens[:, -1:]).cpu().numpy(),
    )


def predict(state: Tensor, classifier: Classifier) -> tuple[Tensor, Tensor]:
    """Return the likeliest token [M] of each state [M, D], and its probability. Eq. (5.18)."""
    tokens, largest = [], []
    for part in state.split(_CHUNK):
        bias = None if classifier.bias is None else classifier.bias.to(part.dtype)
        logits = linear(part, classifier.weight.to(part.dtype), bias).float()
        # exp(max - logsumexp): the largest probability without the other V - 1.
        best, likeliest = logits.max(1)
        tokens.append(likeliest)
        largest.append((best - logits.logsumexp(1)).exp())
    return torch.cat(tokens), torch.cat(largest)


_TOKENS, _VECTORS = 1 << 16, 1 << 10
"""Tokens and threshold vectors of one block: its bit sets fit into a processor's cache."""


@dataclasses.dataclass(frozen=True)
class Replayed:
    """For K vectors of thresholds [K]: mean exit per token, and share of tokens that are hits."""

    average_exit: NDArray[Any]
    agreement: NDArray[Any]


def replay(scores: NDArray[Any], hits: NDArray[Any], thresholds: NDArray[Any]) -> Replayed:
    """Return what K vectors thresholds [K, N - 1] do on M tokens, all at once.

    scores [M, N - 1] are what is compared (in float32) at each exit but the last, and hits [M, N]
    whether the exit's prediction is a hit. A token leaves at the first exit n whose score exceeds
    threshold n. Fast where thresholds share their values, such as thousandths; right for any.
    """
    count = len(thresholds)
    # For each exit and each threshold value in use: the set of tokens that go on there, as bits.
    # A vector of thresholds is then a chain of intersections of such sets, 64 tokens an operation.
    values = [numpy.unique(column, return_inverse=True) for column in _float(thresholds).T]
    gone_on, agreeing = numpy.zeros(count), numpy.zeros(count)
    for first in range(0, len(scores), _TOKENS):
        tokens = slice(first, first + _TOKENS)
        going = [
            _packed(_float(scores[tokens, exit])[None] <= distinct[:, None])
            for exit, (distinct, _) in enumerate(values)
        ]
        right = _packed(hits[tokens].T)
        for start in range(0, count, _VECTORS):
            vectors = slice(start, start + _VECTORS)
            sets = [on[index[vectors]] for on, (_, index) in zip(going, values, strict=True)]
            further, good = _walk(sets, right)
            gone_on[vectors] += further
            agreeing[vectors] += good
    total = max(len(scores), 1)
    return Replayed(1 + gone_on / total, agreeing / total)


def exits_of(scores: NDArray[Any], thresholds: NDArray[Any]) -> NDArray[Any]:
    """Return the exits [M], from 1, that one vector of thresholds [N - 1] takes on M tokens."""
    # The last exit is always taken; `argmax` finds the first True.
    leaves = numpy.ones((len(scores), len(thresholds) + 1), dtype=bool)
    leaves[:, :-1] = _float(scores) > _float(thresholds)
    exits: NDArray[Any] = leaves.argmax(1) + 1
    return exits


def _walk(sets: list[NDArray[Any]], right: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return [K]: blocks run beyond the first, summed over tokens, and the number of hits.

    `sets` has for each exit but the last [K, words], the tokens that would go on there; right [N,
    words] those that each exit gets right. Padding is in no set of `right`, and never goes on.
    """
    on = numpy.full_like(sets[0], numpy.iinfo(numpy.uint64).max)
    further = numpy.zeros(len(on))
    good = numpy.zeros(len(on))
    for exit, going in enumerate(sets):
        after = on & going
        good += _sizes((on ^ after) & right[exit])  # on ^ after: those that leave here
        further += _sizes(after)
        on = after
    return further, good + _sizes(on & right[-1])


def _packed(members: NDArray[Any]) -> NDArray[Any]:
    """Return sets [rows, tokens] (bool) as words of 64 bits, padded with tokens that are not in."""
    rows, tokens = members.shape
    packed = numpy.zeros((rows, -(-tokens // 64) * 8), dtype=numpy.uint8)
    bits = numpy.packbits(members, axis=1)
    packed[:, : bits.shape[1]] = bits
    return packed.view(numpy.uint64)


def _sizes(sets: NDArray[Any]) -> NDArray[Any]:
    sizes: NDArray[Any] = numpy.bitwise_count(sets).sum(1, dtype=numpy.int64)
    return sizes


def _float(values: NDArray[Any]) -> NDArray[Any]:
    # As decoding compares, see `halting.Thresholds`.
    return numpy.ascontiguousarray(values, dtype=numpy.float32)
