"""Every path of a small grid, and random ragged grids: what closed forms are compared with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import torch
from torch import Tensor

from nmtgrid.base.errors import NmtgridError
from nmtgrid.base.rows import is_token
from nmtgrid.online.objectives import dynamic

SIZES = [(2, 1), (1, 4), (3, 3), (4, 2), (2, 5), (5, 5), (4, 6)]
"""Small grids: (source length, target length)."""


def all_paths(source_length: int, target_length: int) -> Iterator[tuple[int, ...]]:
    """Yield every z of `target_length` reads in [1..source_length] that never falls."""
    return itertools.combinations_with_replacement(range(1, source_length + 1), target_length)


def paths_right_of(
    first: Sequence[int], source_length: int, target_length: int
) -> list[tuple[int, ...]]:
    """Return the paths that are nowhere left of the path `first`."""
    return [
        path
        for path in all_paths(source_length, target_length)
        if all(reads >= least for reads, least in zip(path, first, strict=True))
    ]


def wait_k_by_hand(k: float, source_length: int, target_length: int) -> list[int]:
    """Return Eq. (4.25), one token at a time."""
    return [int(max(1, min(k + t - 1, source_length))) for t in range(1, target_length + 1)]


def lengths(sizes: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Return (source lengths, target lengths) of these sizes."""
    source, target = zip(*sizes, strict=True)
    return torch.tensor(source), torch.tensor(target)


def pad(paths: Sequence[Sequence[int]], size: int, value: int = 1) -> Tensor:
    """Return paths [B, size], with `value` on padding."""
    return torch.tensor([[*path, *[value] * (size - len(path))] for path in paths])


def check_paths(paths: Tensor, source_lengths: Tensor, target_lengths: Tensor) -> None:
    """Raise NmtgridError at the first position that no path can have; both count from 1."""
    inside = is_token(target_lengths, paths.shape[1])
    # A path begins with one token read, so a first write with none falls below that.
    before = torch.cat([torch.ones_like(paths[:, :1]), paths[:, :-1]], 1)
    faulty = ((paths < before) | (paths > source_lengths[:, None])) & inside
    if len(paths) and int(target_lengths.max()) > paths.shape[1]:
        sentence, position = int(target_lengths.argmax()), paths.shape[1]
        problem = f"ends before target position {position + 1}"
    elif bool(faulty.any()):
        sentence, position = faulty.nonzero()[0].tolist()
        reads, length = int(paths[sentence, position]), int(source_lengths[sentence])
        where = f"at target position {position + 1}"
        if reads > length:
            problem = f"has read {reads} source tokens {where}, but the source has {length}"
        elif reads < 1:
            problem = f"has read {reads} source tokens {where}"
        else:
            last = int(before[sentence, position])
            problem = f"falls from {last} to {reads} source tokens {where}"
    else:
        return
    raise NmtgridError(
        f"The path of sentence {sentence + 1} {problem}.",
        "A path starts with at least 1 token read, never falls, and ends within the source.",
    )


def read_probabilities(paths: Tensor, source_lengths: Tensor, columns: int) -> Tensor:
    """Return rho [B, T, columns] of policies that follow paths [B, T], Eq. (4.26)."""
    reads = torch.arange(1, columns + 1)
    return (reads < torch.minimum(paths, source_lengths[:, None])[..., None]).float()


def path_log_probabilities(
    logits: Tensor, paths: Tensor, sources: Tensor, targets: Tensor
) -> Tensor:
    """Return log p(z | x, y) [B] of paths [B, T], Eq. (4.12)."""
    rows = zip(logits.split(1), paths.split(1), sources.split(1), targets.split(1), strict=True)
    return torch.stack([-reader_loss(*row, "path") for row in rows])


def reader_loss(
    logits: Tensor, paths: Tensor, sources: Tensor, targets: Tensor, area: dynamic.Area = "grid"
) -> Tensor:
    """Return `dynamic.reader_loss` in an area of grids of these lengths."""
    counts = dynamic.reader_cells(paths, sources, targets, logits.shape[2], area)
    return dynamic.reader_loss(logits, paths, counts)


def count_paths(target_length: int, source_length: int, k: int = 1) -> int:
    """Return the number of paths that are nowhere left of the wait-k path, Eq. (4.31)."""
    return _count(target_length, max(source_length - k, 0), 1)


def occupancy(t: int, j: int, k: int, target_length: int, source_length: int) -> Fraction:
    """Return the exact share of these paths that write token t with j reads, Eq. (4.35).

    Both count from 1.
    """
    k = min(k, source_length)
    if not min(k + t - 1, source_length) <= j <= source_length:
        return Fraction(0)
    leading = _count(t - 1, j - k, 1)
    following = _count(target_length - t, source_length - j, j - k - t + 1)
    return Fraction(leading * following, _count(target_length, source_length - k, 1))


def _count(writes: int, reads: int, margin: int) -> int:
    """Return N(m, n, c): orders of the writes and reads that never cross the diagonal.

    The ballot problem, counted by reflecting those that do cross it.
    """
    if reads == 0:
        return 1
    # Writes after the last read leave no choice and count one way.
    writes = min(writes, reads + margin)
    crossing = writes - margin - 1
    barred = math.comb(writes + reads, crossing) if crossing >= 0 else 0
    return math.comb(writes + reads, writes) - barred
