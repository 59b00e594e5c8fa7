"""Source memories of prefixes: what a decoder reads when every READ changes the whole encoding.

A bi-directional encoder gives each prefix of a sentence states of its own, Eq. (4.16). Along a path
only the distinct prefixes are encoded; positions that have read the same one share it.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from nmtgrid.layers.attention import attend, attention_weights
from nmtgrid.layers.source_cache import SourceMemory


@dataclasses.dataclass(frozen=True)
class PrefixPlan:
    """Which prefixes a path [B, T] needs, and which positions read each of them.

    sentence and reads [P] name the prefixes; slots [P, W] are the places b * T + t in a flat
    [B * T] of the positions that read a prefix (free slots hold any), places [B * T] the slots.
    """

    sentence: Tensor
    reads: Tensor
    slots: Tensor
    places: Tensor

    @classmethod
    def make(cls, path: Tensor) -> PrefixPlan:
        """Return the plan for the reads `path` [B, T]."""
        base = int(path.max()) + 1
        sentence = torch.arange(len(path), device=path.device)[:, None]
        found, prefix, sizes = torch.unique(
            (sentence * base + path).flatten(), return_inverse=True, return_counts=True
        )
        order = prefix.argsort(stable=True)
        starts = sizes.cumsum(0) - sizes
        turn = torch.empty_like(prefix)
        turn[order] = torch.arange(len(order), device=path.device) - starts[prefix[order]]
        width = int(sizes.max())
        places = prefix * width + turn
        slots = prefix.new_zeros(len(found) * width)
        slots[places] = torch.arange(len(places), device=path.device)
        sentence = torch.div(found, base, rounding_mode="floor")
        return cls(sentence, found - sentence * base, slots.view(len(found), width), places)


@dataclasses.dataclass(frozen=True)
class PrefixMemory(SourceMemory):
    """Keys and values of P prefixes, read in teacher forcing by the positions of a plan."""

    plan: PrefixPlan = dataclasses.field(kw_only=True)

    @classmethod
    def over(cls, memory: SourceMemory, plan: PrefixPlan) -> PrefixMemory:
        """Return `memory`, one row for each prefix of `plan`, as positions read it."""
        return cls(memory.keys, memory.values, memory.mask, lead=memory.lead, plan=plan)

    def attend_all(self, place: int, query: Tensor, *, dropout: float = 0.0) -> Tensor:
        """Return [B, H, T, d]: what all positions' queries [B, H, T, d] read."""
        read = attend(
            self._spread(query), self.keys[place], self.values[place], self.mask, dropout=dropout
        )
        return self._collect(read, query)

    def weights_all(self, place: int, query: Tensor) -> Tensor:
        """Return [B, H, T, S]: the weights with which `attend_all` reads the source."""
        found = attention_weights(self._spread(query), self.keys[place], self.mask)
        return self._collect(found, query)

    def _spread(self, query: Tensor) -> Tensor:
        """Return [P, H, W, d]: the queries by the prefixes that they read."""
        flat = query.transpose(1, 2).flatten(0, 1)
        slots = self.plan.slots
        spread: Tensor = flat.index_select(0, slots.flatten()).unflatten(0, slots.shape)
        return spread.transpose(1, 2)

    def _collect(self, read: Tensor, query: Tensor) -> Tensor:
        """Return [B, H, T, .]: what was read [P, H, W, .], back where the queries were."""
        flat = read.transpose(1, 2).flatten(0, 1).index_select(0, self.plan.places)
        collected: Tensor = flat.unflatten(0, (query.shape[0], query.shape[2]))
        return collected.transpose(1, 2)
