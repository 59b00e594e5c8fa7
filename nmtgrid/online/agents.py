"""Agents: who decides when the next source token is read.

They serve batches whose source is whole and streams alike: a stream that goes on gives as length
one more than the tokens it has, and that length as the answer means that it must read.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from nmtgrid.online.paths import continue_paths, wait_k
from nmtgrid.online.policies import check_threshold, next_reads


@dataclasses.dataclass(frozen=True)
class WaitK:
    """Reads k tokens first (infinity: all), then one before each later write. Eq. (4.25)."""

    k: float
    finish_reading: bool = False
    wants_reading = False

    def __post_init__(self) -> None:
        """Raise ConfigError for a k below 1 or not whole."""
        wait_k(self.k, torch.ones(1, dtype=torch.int64), 1)

    def next_reads(
        self, step: int, sentence: Tensor, reads: Tensor, lengths: Tensor, rho: Tensor | None
    ) -> Tensor:
        """Return min(k + step, length)."""
        return lengths.clamp(max=int(self.k) + step) if self.k < torch.inf else lengths


@dataclasses.dataclass(frozen=True)
class Threshold:
    """Reads on while the model's probability of reading is at least `threshold`."""

    threshold: float
    finish_reading: bool = False
    wants_reading = True

    def __post_init__(self) -> None:
        """Raise ConfigError unless the threshold is above 0 and below 1."""
        check_threshold(self.threshold)

    def next_reads(
        self, step: int, sentence: Tensor, reads: Tensor, lengths: Tensor, rho: Tensor | None
    ) -> Tensor:
        """Return the first column from the last reads on that writes."""
        assert rho is not None
        return next_reads(rho, reads, self.threshold, lengths)


class AlongPaths:
    """Follows given paths [B, T], then the whole source: algorithm 1, not for streams.

    Departs: the print counts `t` after it has taken z_t, and says nothing of |y| and beyond.
    """

    wants_reading = False

    def __init__(self, paths: Tensor, target_lengths: Tensor, finish_reading: bool = False) -> None:
        """`target_lengths` [B] count the paths' own entries."""
        self.paths, self.target_lengths = paths, target_lengths
        self.finish_reading = finish_reading

    def next_reads(
        self, step: int, sentence: Tensor, reads: Tensor, lengths: Tensor, rho: Tensor | None
    ) -> Tensor:
        """Return the path's reads, or the whole source beyond its end."""
        given = self.paths[sentence], lengths, self.target_lengths[sentence]
        return continue_paths(*given, step + 1)[:, step]
