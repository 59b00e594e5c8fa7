"""Sampling sentences near the reference, by their Hamming distance (section E.2.1).

Sampling is stratified: first a distance d, then d positions, then a substitute for each. With n
replaceable tokens, m substitutes for each, and a reward of `-cost * d`, the distribution (E.5)
gives distance d the probability `C(n, d) m^d exp(-cost d)`, normalised, which is sampled exactly.
With a cost of `1 / temperature + log m` this is `C(n, d) exp(-d / temperature)`, independent of the
number of substitutes. End symbols are never replaced, so lengths stay the same; unknown tokens are
neither replaced nor inserted.

Letters: B sentences, T target positions, L samples, V types, W types to choose from.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from nmtgrid.data.batches import Batch
from nmtgrid.layers.soft_targets import TargetDistribution
from nmtgrid.text.vocabulary import BEGIN, PAD, SPECIALS, UNKNOWN
from nmtgrid.training.settings import Vocabulary

_SPECIAL = len(SPECIALS)


@dataclasses.dataclass(frozen=True)
class Choices:
    """The types that may replace a token.

    types [B or 1, W] are sorted in each row and padded with a large number; counts [B or 1] are
    their numbers. They include all true tokens of a sentence except unknown ones.
    """

    types: Tensor
    counts: Tensor

    @classmethod
    def of(cls, vocabulary: Vocabulary, batch: Batch, size: int) -> Choices:
        """Return the types for a batch: all `size` types, or those of the batch or the references.

        Special symbols, including the unknown token, are never among them.
        """
        device = batch.target_output.device
        if vocabulary == "all":
            types = torch.arange(_SPECIAL, size, device=device)[None]
        elif vocabulary == "batch":
            types = torch.cat([text.flatten() for text in _references(batch)]).unique()
            types = types[types >= _SPECIAL][None]
        else:
            return cls._by_row(torch.cat([text.flatten(1) for text in _references(batch)], 1))
        count = torch.full((1,), types.shape[1], device=device)
        if not types.shape[1]:  # all reference tokens are unknown; there must be a column
            types = torch.full((1, 1), _NONE, device=device)
        return cls(types, count)

    @classmethod
    def _by_row(cls, texts: Tensor) -> Choices:
        """Return the distinct types of each row of texts [B, N]."""
        # Sort, mark repetitions, sort again: distinct types first, padding last, no loop.
        rising = texts.masked_fill(texts < _SPECIAL, _NONE).sort(1).values
        is_new = torch.ones_like(rising, dtype=torch.bool)
        is_new[:, 1:] = rising[:, 1:] != rising[:, :-1]
        types = rising.masked_fill(~is_new, _NONE).sort(1).values
        counts = (types != _NONE).sum(1)
        return cls(types[:, : max(1, int(counts.max()))].contiguous(), counts)

    def others(self, tokens: Tensor, number: Tensor) -> Tensor:
        """Return another type for each of tokens [B, L, T]; `number` in [0, 1) selects it."""
        # In double: a float32 number cannot distinguish the types of a large vocabulary.
        rows = len(tokens)
        types = self.types.expand(rows, -1).contiguous()
        flat = tokens.reshape(rows, -1)
        others = (self.counts - 1).clamp(min=1)[:, None]
        index = (number.reshape(rows, -1).double() * others).long().clamp(max=others - 1)
        # The true token's own index is skipped, so that all others are equally likely.
        index = index + (index >= torch.searchsorted(types, flat))
        index = index.clamp(max=types.shape[1] - 1)
        return types.gather(1, index).view_as(tokens)


_NONE = 2**40


def _references(batch: Batch) -> list[Tensor]:
    """Return the references [B, ...]."""
    references = [batch.target_output]
    return references if batch.references is None else [*references, batch.references]


def distance_logs(lengths: Tensor, others: Tensor, cost: Tensor, max_distance: int) -> Tensor:
    """Return the log-probabilities [B, D + 1] of the distances 0 to D = `max_distance`.

    lengths [B] are the numbers of tokens that may change, others [B] those of substitutes for each,
    cost [B] the cost of a substitution, in nats.
    """
    # log C(n, d) with the gamma function; binomials of long sentences overflow otherwise.
    distance = torch.arange(max_distance + 1, device=lengths.device)
    n = lengths[:, None].double()
    unchanged = n - distance
    subsets = (n + 1).lgamma() - (distance + 1.0).lgamma() - (unchanged.clamp(min=0) + 1).lgamma()
    each = others.double().log() - cost.double()
    # Without substitutes only distance 0 is possible: 0 times -inf has to be 0.
    chances = torch.where(distance > 0, distance * each[:, None], 0.0)
    logs = (subsets + chances).masked_fill(unchanged < 0, -torch.inf)
    return logs.log_softmax(1)


@dataclasses.dataclass(frozen=True)
class Samples:
    """L sampled sentences for each of B: tokens [B, L, T].

    distances [B, L] are the numbers of replaced tokens; logs [B, L] are the log-probabilities of
    these very sentences.
    """

    tokens: Tensor
    distances: Tensor
    logs: Tensor


def change_cost(others: Tensor, temperature: float, rescale: bool) -> Tensor:
    """Return the cost [B] of a substitution, in nats, for `others` [B], the number of substitutes.

    It is 1 / temperature; with `rescale`, log others is added, so that all substitutes of a token
    together have the odds exp(-1 / temperature) against it, however many there are.
    """
    cost = torch.full_like(others, 1 / temperature, dtype=torch.double)
    return cost + others.clamp(min=1).double().log() if rescale else cost


def draw_samples(
    batch: Batch,
    choices: Choices,
    count: int,
    temperature: float,
    *,
    rescale: bool,
    spread: TargetDistribution | None = None,
) -> Samples:
    """Return `count` sentences near each reference.

    `temperature` and `rescale` are as in `change_cost`. With a `spread`, substitutes are drawn from
    it rather than uniformly from `choices` (which, without `rescale`, still determine how frequent
    the distances are). A token without substitutes stays.
    """
    reference = batch.target_output
    others = (choices.counts - 1).expand(len(batch))
    may_change = batch.is_target & (reference >= _SPECIAL)
    if spread is not None:
        # Types without a vector have no neighbours (-inf): they stay, and do not count in n.
        types, type_index = reference.unique(return_inverse=True)
        _, logs = spread.sample(types, torch.zeros(len(types), device=reference.device))
        may_change &= logs.isfinite()[type_index]
    lengths = may_change.sum(1)
    cost = change_cost(others, temperature, rescale)
    priors = distance_logs(lengths, others, cost, reference.shape[1])
    distances = torch.multinomial(priors.exp(), count, replacement=True)
    # Ranks of random numbers: the d smallest are d uniformly drawn positions. Tokens that must not
    # change get 2 and so the last ranks.
    order = torch.rand(len(batch), count, reference.shape[1], device=reference.device)
    order = order.masked_fill(~may_change[:, None], 2.0).argsort(2).argsort(2)
    changed = order < distances[..., None]
    tokens = reference[:, None].expand(-1, count, -1)
    number = torch.rand(tokens.shape, device=reference.device)
    # The probability of a sentence: of its distance, of these d positions among all subsets, and
    # of the substitutes.
    n, d = lengths[:, None].double(), distances.double()
    subsets = (n + 1).lgamma() - (d + 1).lgamma() - (n - d + 1).lgamma()
    logs = priors.gather(1, distances) - subsets
    if spread is None:
        substitutes = choices.others(tokens, number)
        logs = logs - torch.where(distances > 0, d * others[:, None].double().log(), 0.0)
    else:
        substitutes = tokens.clone()
        places = changed.nonzero(as_tuple=True)
        substitutes[places], chances = spread.sample(tokens[places], number[places])
        chance_logs = torch.zeros(tokens.shape, dtype=torch.double, device=reference.device)
        chance_logs[places] = chances.double()
        logs = logs + chance_logs.sum(2)
    return Samples(torch.where(changed, substitutes, tokens), distances, logs)


def as_batch(batch: Batch, tokens: Tensor, weights: Tensor) -> Batch:
    """Return a batch with the samples [B, L, T] as references, weighted by `weights` [B, L].

    Sample l of sentence b is row `b * L + l`.
    """
    count = tokens.shape[1]
    several, _ = batch.repeated(count)
    output = tokens.flatten(0, 1)
    shifted = torch.full_like(output, BEGIN)
    shifted[:, 1:] = output[:, :-1]
    # Word dropout hides the same tokens as in the reference; unknown tokens never change anyway.
    shifted = shifted.masked_fill(several.target_input == UNKNOWN, UNKNOWN)
    return dataclasses.replace(
        several,
        target_input=shifted.masked_fill(~several.is_target, PAD),
        target_output=output,
        weights=weights.flatten(),
    )
