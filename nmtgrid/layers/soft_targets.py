"""What predictions are trained to be, where that is more than one true token each.

A prediction's aim is a distribution over types: a mixture of tokens, each of which may be spread
over the types that are like it (Appendix E). Letters: M sites, C tokens of a mixture, V types.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import torch
from torch import Tensor

TILE = 1 << 22
"""Rewards at a time, where they are all that is made."""
TAKEN = 1 << 25
"""Rewards at a time beside the logits of a chunk."""


class TargetDistribution(Protocol):
    """The distribution r(. | y) over V types that takes a token's place."""

    def take(self, errors: Tensor | None, logits: Tensor, tokens: Tensor, shares: Tensor) -> Tensor:
        """Return `sum_v q_v z_v` [M] of q = sum_c share_c r(. | token_c), and subtract q.

        errors (from which it is subtracted; None: there is nothing to subtract from) and logits
        are [M, V]; tokens and shares are [M, C].
        """
        ...

    def draw(self, tokens: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
        """Return for tokens [M] another type each, drawn from r without the token itself.

        `number` [M] in [0, 1) says which. The second tensor [M] is its log-probability, -inf where
        there is no other type; the token itself is returned there.
        """
        ...


@dataclasses.dataclass(frozen=True)
class SoftTargets:
    """Mixtures of C tokens for each of some places.

    tokens (int64) and shares (float, summing to one) are [..., C]. Of each token, `spread_share`
    goes to what `spread` makes of it. The loss is less by `entropy` times the entropy of the
    prediction, in nats.
    """

    tokens: Tensor
    shares: Tensor
    spread: TargetDistribution | None = None
    spread_share: float = 0.0
    entropy: float = 0.0

    def __getitem__(self, place: Any) -> SoftTargets:
        """Return the aims at some places."""
        return dataclasses.replace(self, tokens=self.tokens[place], shares=self.shares[place])

    def take(self, errors: Tensor | None, logits: Tensor, scale: float) -> Tensor:
        """Return the aims' mean logit [M], and subtract `scale` times the aims [M, V].

        errors and logits are [M, V], the aims [M, C]; without errors nothing is subtracted.
        """
        shares = self.shares.to(logits.dtype)
        spread_share = self.spread_share if self.spread is not None else 0.0
        mean = logits.new_zeros(len(logits))
        if spread_share < 1.0:
            kept = shares * (1.0 - spread_share)
            mean = (logits.gather(1, self.tokens) * kept).sum(1)
            if errors is not None:
                errors.scatter_add_(1, self.tokens, kept * -scale)
        if spread_share and self.spread is not None:
            part = shares * spread_share
            # What is subtracted is scaled, and so is what is returned.
            mean = mean + self.spread.take(errors, logits, self.tokens, part * scale) / scale
        return mean


class NeighbourDistribution:
    """A spread over the K likeliest types of each type, the rest left out.

    neighbours [V, K] (whole numbers) and probabilities [V, K], each row summing to one.
    """

    def __init__(self, neighbours: Tensor, probabilities: Tensor) -> None:
        self.neighbours, self.probabilities = neighbours, probabilities

    def take(self, errors: Tensor | None, logits: Tensor, tokens: Tensor, shares: Tensor) -> Tensor:
        """See `TargetDistribution`."""
        places = self.neighbours[tokens].flatten(1).long()
        found = self.probabilities[tokens].to(logits.dtype) * shares[..., None]
        found = found.flatten(1)
        if errors is not None:
            errors.scatter_add_(1, places, -found)
        return (logits.gather(1, places) * found).sum(1)

    def draw(self, tokens: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
        """See `TargetDistribution`."""
        places = self.neighbours[tokens].long()
        found = self.probabilities[tokens].masked_fill(places == tokens[:, None], 0.0)
        chosen, logs = _sample(found, number)
        types = places.gather(1, chosen[:, None])[:, 0]
        return torch.where(logs.isfinite(), types, tokens), logs

    def to(self, device: torch.device) -> NeighbourDistribution:
        """Return the spread on `device`."""
        return NeighbourDistribution(self.neighbours.to(device), self.probabilities.to(device))


class VectorDistribution:
    """A spread over all types, from the cosines of their vectors; V x V is never made.

    vectors [V, E] of norm one, or zero for types that keep to themselves; frequencies [V]. The
    reward of v for y is `cosine - rarity * min(f_v / f_y, f_y / f_v)`. Eq. (E.10), (E.11).
    """

    def __init__(
        self, vectors: Tensor, temperature: float, frequencies: Tensor, rarity: float = 0.0
    ) -> None:
        self.vectors, self.temperature = vectors, temperature
        self.frequencies, self.rarity = frequencies, rarity
        self._known = vectors.abs().amax(1) > 0

    def rewards(self, tokens: Tensor) -> Tensor:
        """Return r(v, y) [M, V] for tokens y [M], -inf where v has no vector.

        A token without a vector has a reward for itself alone.
        """
        with torch.autocast(self.vectors.device.type, enabled=False):
            found = self.vectors[tokens] @ self.vectors.t()
        if self.rarity:
            mine, all_types = self.frequencies[tokens, None], self.frequencies[None]
            least, most = torch.minimum(mine, all_types), torch.maximum(mine, all_types)
            # Two types that were never seen are as frequent as each other.
            found = found - self.rarity * torch.where(most > 0, least / most.clamp(min=1e-9), 1.0)
        found = found.masked_fill(~self._known, -torch.inf)
        alone = ~self._known[tokens]
        if bool(alone.any()):
            found[alone] = -torch.inf
            found[alone, tokens[alone]] = 0.0
        return found

    def rows(self, tokens: Tensor) -> Tensor:
        """Return r(. | y) [M, V] for tokens y [M]."""
        return (self.rewards(tokens) / self.temperature).softmax(1)

    def take(self, errors: Tensor | None, logits: Tensor, tokens: Tensor, shares: Tensor) -> Tensor:
        """See `TargetDistribution`."""
        types, place = tokens.unique(return_inverse=True)
        tile = max(1, TAKEN // len(self.vectors))
        if tokens.shape[1] == 1 and len(types) <= tile:
            mixed = self.rows(types).to(logits.dtype)[place[:, 0]] * shares
        else:
            # [M, U]: what each site wants of each distinct token.
            wanted = shares.new_zeros(len(tokens), len(types)).scatter_add_(1, place, shares)
            mixed = torch.zeros_like(logits)
            for some, asked in zip(types.split(tile), wanted.split(tile, 1), strict=True):
                mixed.addmm_(asked, self.rows(some).to(logits.dtype))
        if errors is not None:
            errors.sub_(mixed)
        return (logits * mixed).sum(1)

    def draw(self, tokens: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
        """See `TargetDistribution`."""
        parts = zip(tokens.split(self._tile), number.split(self._tile), strict=True)
        types, logs = zip(*(self._draw_some(*part) for part in parts), strict=True)
        return torch.cat(types), torch.cat(logs)

    def _draw_some(self, tokens: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
        found = self.rows(tokens)
        found[torch.arange(len(tokens), device=tokens.device), tokens] = 0.0
        chosen, logs = _sample(found, number)
        return torch.where(logs.isfinite(), chosen, tokens), logs

    @property
    def _tile(self) -> int:
        """How many tokens' rewards are made at a time."""
        return max(1, TILE // len(self.vectors))

    def nearest(self, count: int) -> NeighbourDistribution:
        """Return the spread over the `count` types of highest reward, made in tiles.

        Where vectors are hardly alike this is another distribution than (E.10), for far types are
        many: at a temperature of 0.2 a hundred of 2,000 types may hold a fifth of it.
        """
        size = len(self.vectors)
        count = min(count, size)
        places = torch.empty(size, count, dtype=torch.int32, device=self.vectors.device)
        shares = torch.empty(size, count, device=self.vectors.device)
        for tokens in torch.arange(size, device=self.vectors.device).split(self._tile):
            rewards, types = self.rewards(tokens).topk(count, 1)
            places[tokens] = types.int()
            shares[tokens] = (rewards / self.temperature).softmax(1)
        return NeighbourDistribution(places, shares)

    def to(self, device: torch.device) -> VectorDistribution:
        """Return the spread on `device`."""
        return VectorDistribution(
            self.vectors.to(device), self.temperature, self.frequencies.to(device), self.rarity
        )


def _sample(found: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places [M] that `number` [M] in [0, 1) picks from rows [M, K], and their logs."""
    reached = found.double().cumsum(1)
    total = reached[:, -1:]
    # The first place whose sum is above what was drawn: one of chance zero is never taken.
    chosen = torch.searchsorted(reached, number[:, None].double() * total, right=True)
    chosen = chosen.clamp(max=found.shape[1] - 1)
    share = found.gather(1, chosen).double() / total
    logs = torch.where(total > 0, share, 0.0).log()[:, 0]
    return chosen[:, 0], logs.to(found.dtype)
