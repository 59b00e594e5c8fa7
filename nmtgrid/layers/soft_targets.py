"""Soft targets: distributions over types that replace the reference token (appendix E).

The target of a prediction is a mixture of tokens, each of which may give a share to similar types.
The fused loss (kernels/linear_loss.py) subtracts these targets from softmax probabilities without
storing them; smoothing/ creates them. Letters: M sites, C tokens of a mixture, V types.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

TILE = 1 << 22
"""Elements of a tile of rewards [m, V] if nothing else of that size is in memory."""
TILE_BESIDE_LOGITS = 1 << 25
"""The same if the logits of a chunk, which are larger, are in memory too."""


@dataclasses.dataclass(frozen=True)
class SoftTargets:
    """Mixtures of C tokens, one for each of some sites.

    tokens (int64) and shares (float, summing to one) are [..., C]. Each token gives a fraction
    `distribution_share` of its share to `distribution` for that token. The loss is reduced by
    `entropy` times the entropy of the prediction, in nats.
    """

    tokens: Tensor
    shares: Tensor
    distribution: TargetDistribution | None = None
    distribution_share: float = 0.0
    entropy: float = 0.0

    def __getitem__(self, index: Any) -> SoftTargets:
        """Return the targets of some sites."""
        return dataclasses.replace(self, tokens=self.tokens[index], shares=self.shares[index])

    def repeat(self, times: int) -> SoftTargets:
        """Return the targets of M sites, repeated `times` times [times * M, C]."""
        tokens, shares = self.tokens.repeat(times, 1), self.shares.repeat(times, 1)
        return dataclasses.replace(self, tokens=tokens, shares=shares)

    def subtract_(self, errors: Tensor | None, logits: Tensor, scale: float) -> Tensor:
        """Return the targets' mean logit [M]; subtract `scale` times the targets from `errors`.

        errors and logits are [M, V], the mixtures [M, C]; without errors nothing is subtracted.
        """
        shares = self.shares.to(logits.dtype)
        distribution_share = self.distribution_share if self.distribution is not None else 0.0
        mean = logits.new_zeros(len(logits))
        if distribution_share < 1.0:
            own = shares * (1.0 - distribution_share)
            mean = (logits.gather(1, self.tokens) * own).sum(1)
            if errors is not None:
                errors.scatter_add_(1, self.tokens, own * -scale)
        if distribution_share and self.distribution is not None:
            part = shares * distribution_share * scale
            # The shares are scaled for the subtraction; the mean is divided by the scale again.
            mean = mean + self.distribution.subtract_(errors, logits, self.tokens, part) / scale
        return mean


class NeighbourDistribution:
    """The distribution r(. | y) over the K most likely types of each token y.

    neighbours [V, K] (integers) and probabilities [V, K], each row summing to one.
    """

    def __init__(self, neighbours: Tensor, probabilities: Tensor) -> None:
        self.neighbours, self.probabilities = neighbours, probabilities

    def subtract_(
        self, errors: Tensor | None, logits: Tensor, tokens: Tensor, shares: Tensor
    ) -> Tensor:
        """Return `sum_v q_v z_v` [M] of q = sum_c share_c r(. | token_c), and subtract q.

        errors (from which q is subtracted, unless None) and logits are [M, V]; tokens and shares
        are [M, C].
        """
        # The table [V, K] is in int32 to halve it; only its rows in use become int64.
        types = self.neighbours[tokens].flatten(1).long()
        target = self.probabilities[tokens].to(logits.dtype) * shares[..., None]
        target = target.flatten(1)
        if errors is not None:
            errors.scatter_add_(1, types, -target)
        return (logits.gather(1, types) * target).sum(1)

    def sample(self, tokens: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
        """Return another type for each of tokens [M], drawn from r without the token itself.

        `number` [M] in [0, 1) decides which. The second tensor [M] is its log-probability: -inf if
        there is no other type, in which case the token itself is returned.
        """
        types = self.neighbours[tokens].long()
        weights = self.probabilities[tokens].masked_fill(types == tokens[:, None], 0.0)
        columns, log_probs = _sample(weights, number)
        types = types.gather(1, columns[:, None])[:, 0]
        return torch.where(log_probs.isfinite(), types, tokens), log_probs


class VectorDistribution:
    """A distribution over all types, from the cosines of their vectors, without a V x V matrix.

    vectors [V, E] of norm one, or zero for types that are not smoothed; frequencies [V]. The
    reward of v for y is `cosine - rarity * min(f_v / f_y, f_y / f_v)`. Eq. (E.10), (E.11).
    """

    def __init__(
        self, vectors: Tensor, temperature: float, frequencies: Tensor, rarity: float = 0.0
    ) -> None:
        self.vectors, self.temperature = vectors, temperature
        self.frequencies, self.rarity = frequencies, rarity
        self._has_vector = vectors.abs().amax(1) > 0

    def rewards(self, tokens: Tensor) -> Tensor:
        """Return r(v, y) [M, V] for tokens y [M], -inf where v has no vector.

        A token without a vector has a reward only for itself.
        """
        # In fp32 also under autocast: a low temperature magnifies the rounding errors of bf16.
        with torch.autocast(self.vectors.device.type, enabled=False):
            rewards = self.vectors[tokens] @ self.vectors.t()
        if self.rarity:
            own, all_types = self.frequencies[tokens, None], self.frequencies[None]
            least, most = torch.minimum(own, all_types), torch.maximum(own, all_types)
            # Two types that were never seen count as equally frequent.
            ratio = torch.where(most > 0, least / most.clamp(min=1e-9), 1.0)
            rewards = rewards - self.rarity * ratio
        rewards = rewards.masked_fill(~self._has_vector, -torch.inf)
        alone = ~self._has_vector[tokens]
        if bool(alone.any()):
            rewards[alone] = -torch.inf
            rewards[alone, tokens[alone]] = 0.0
        return rewards

    def rows(self, tokens: Tensor) -> Tensor:
        """Return r(. | y) [M, V] for tokens y [M]."""
        return (self.rewards(tokens) / self.temperature).softmax(1)

    def subtract_(
        self, errors: Tensor | None, logits: Tensor, tokens: Tensor, shares: Tensor
    ) -> Tensor:
        # Each distinct token's rewards are computed once, however many sites share it.
        types, index = tokens.unique(return_inverse=True)
        tile = max(1, TILE_BESIDE_LOGITS // len(self.vectors))
        if tokens.shape[1] == 1 and len(types) <= tile:
            mixed = self.rows(types).to(logits.dtype)[index[:, 0]] * shares
        else:
            # [M, U]: each site's share of each distinct token.
            type_shares = shares.new_zeros(len(tokens), len(types)).scatter_add_(1, index, shares)
            mixed = torch.zeros_like(logits)
            tiles = zip(types.split(tile), type_shares.split(tile, 1), strict=True)
            for tile_types, tile_shares in tiles:
                mixed.addmm_(tile_shares, self.rows(tile_types).to(logits.dtype))
        if errors is not None:
            errors.sub_(mixed)
        return (logits * mixed).sum(1)

    def sample(self, tokens: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
        samples = []
        for part, numbers in zip(tokens.split(self._tile), number.split(self._tile), strict=True):
            # In tiles of tokens; each row depends only on its token, so tiles change no sample.
            weights = self.rows(part)
            weights[torch.arange(len(part), device=part.device), part] = 0.0
            types, log_probs = _sample(weights, numbers)
            samples.append((torch.where(log_probs.isfinite(), types, part), log_probs))
        types, log_probs = map(torch.cat, zip(*samples, strict=True))
        return types, log_probs

    @property
    def _tile(self) -> int:
        """The number of tokens whose rewards are computed at a time."""
        return max(1, TILE // len(self.vectors))

    def nearest(self, count: int) -> NeighbourDistribution:
        """Return the distribution over the `count` types of highest reward.

        If vectors are hardly similar, this differs from the distribution (E.10), because there are
        many distant types: at a temperature of 0.2 the nearest hundred of 2,000 types may have only
        a fifth of the probability.
        """
        size = len(self.vectors)
        count = min(count, size)
        neighbours = torch.empty(size, count, dtype=torch.int32, device=self.vectors.device)
        probabilities = torch.empty(size, count, device=self.vectors.device)
        for tokens in torch.arange(size, device=self.vectors.device).split(self._tile):
            rewards, types = self.rewards(tokens).topk(count, 1)
            neighbours[tokens] = types.int()
            probabilities[tokens] = (rewards / self.temperature).softmax(1)
        return NeighbourDistribution(neighbours, probabilities)

    def to(self, device: torch.device) -> VectorDistribution:
        return VectorDistribution(
            self.vectors.to(device), self.temperature, self.frequencies.to(device), self.rarity
        )


TargetDistribution = NeighbourDistribution | VectorDistribution
"""The distribution r(. | y) over V types that replaces a token."""


def _sample(weights: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    """Return the columns [M] drawn with `number` [M] in [0, 1) from rows [M, K], and their logs."""
    # Sums over all types in double: in fp32 rare types at the end would vanish.
    cumulative = weights.double().cumsum(1)
    total = cumulative[:, -1:]
    # The first column whose sum is above the number: columns of weight zero are never drawn.
    columns = torch.searchsorted(cumulative, number[:, None].double() * total, right=True)
    columns = columns.clamp(max=weights.shape[1] - 1)
    share = weights.gather(1, columns).double() / total
    log_probs = torch.where(total > 0, share, 0.0).log()[:, 0]
    return columns[:, 0], log_probs.to(weights.dtype)
