"""Which predictions are wanted of a model: M sites, each one place of one sentence.

Letters: B sentences, T target positions, S source positions, M sites, N exits.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from nmtgrid.data.batches import Batch


@dataclasses.dataclass(frozen=True)
class Sites:
    """Which predictions are wanted: M of them, one for each entry.

    sentence [M] and position [M] (int64) name the row of the grid: position t predicts
    `target_output[sentence, t]`. reads [M] is the number of source tokens read at that moment
    (None: the whole source; else from 1 to the source's length, its end symbol counted).

    depth [M], from 1 to N, is the exit that predicts (None: the last). The tokens before it count
    as having exited at the same depth too ("aligned"), unless `mixed`: then each position exited
    where its own site says, those without a site at the last exit, and the blocks that a position
    skipped hold copies of its state (section 5.2.3).
    """

    sentence: Tensor
    position: Tensor
    reads: Tensor | None = None
    depth: Tensor | None = None
    mixed: bool = dataclasses.field(default=False, kw_only=True)

    @classmethod
    def offline(cls, batch: Batch) -> Sites:
        """One prediction for each target position, end symbol included, with the whole source."""
        places = batch.is_target.nonzero()
        return cls(places[:, 0], places[:, 1])

    @classmethod
    def along(cls, batch: Batch, path: Tensor) -> Sites:
        """Return one prediction for each target position, with the reads of `path` [B, T]."""
        places = batch.is_target.nonzero()
        return cls(places[:, 0], places[:, 1], path[places[:, 0], places[:, 1]])

    def __len__(self) -> int:
        return self.sentence.shape[0]


def check_reads(batch: Batch, sites: Sites, least: int = 1) -> None:
    """Raise ValueError unless all reads are from `least` to their source's length."""
    if sites.reads is None or not len(sites):
        return
    lengths = batch.source_lengths[sites.sentence]
    wrong = (sites.reads < least) | (sites.reads > lengths)
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0, 0])
        raise ValueError(
            f"reads must be from {least} to the length of their source, which is "
            f"{int(lengths[at])} tokens with its end symbol, but are {int(sites.reads[at])}"
        )


def path_of(batch: Batch, sites: Sites, least: int = 1) -> Tensor:
    """Return the path [B, T] on which all sites of a sentence lie.

    Positions that are not asked for take the reads of the nearest earlier site, those before the
    first site its reads, and sentences without sites the whole source.

    Raises ValueError for reads out of range, two different reads for one position of a sentence,
    and reads that become fewer.
    """
    assert sites.reads is not None
    check_reads(batch, sites, least)
    count, length = batch.target_input.shape
    path = sites.reads.new_full((count * length,), -1)
    places = sites.sentence * length + sites.position
    path[places] = sites.reads
    if not torch.equal(path[places], sites.reads):
        raise ValueError(
            "this model's predictions depend on the path: a position cannot have two different "
            "reads in one pass; ask for them in passes of their own"
        )
    path = path.view(count, length)
    here = torch.arange(length, device=path.device).expand(count, length)
    last = torch.where(path >= 0, here, -1).cummax(1).values
    first = torch.where(path >= 0, here, length - 1).amin(1, keepdim=True)
    path = path.gather(1, torch.where(last >= 0, last, first))
    path = torch.where(path >= 0, path, batch.source_lengths[:, None].to(path.dtype))
    if bool((path[:, 1:] < path[:, :-1]).any()):
        raise ValueError("along a path reads never become fewer, but these do")
    return path


def check_depth(sites: Sites, exits: int) -> None:
    """Raise ValueError unless all depths are from 1 to `exits`."""
    if sites.depth is None or not len(sites):
        return
    wrong = (sites.depth < 1) | (sites.depth > exits)
    if bool(wrong.any()):
        at = int(sites.depth[wrong][0])
        raise ValueError(f"exits count from 1 to {exits}, but a site has exit {at}")


def depths_of(batch: Batch, sites: Sites, exits: int) -> Tensor:
    """Return the exits [B, T] of all positions, for mixed sites.

    Raises ValueError for depths out of range, and two of them for one position of a sentence.
    """
    assert sites.depth is not None
    check_depth(sites, exits)
    count, length = batch.target_input.shape
    depths = sites.depth.new_full((count * length,), exits)
    places = sites.sentence * length + sites.position
    depths[places] = sites.depth
    if not torch.equal(depths[places], sites.depth):
        raise ValueError(
            "a position cannot have left at two exits in one pass; ask for them in passes of their "
            "own"
        )
    return depths.view(count, length)
