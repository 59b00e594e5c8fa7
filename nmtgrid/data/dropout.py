"""BPE-dropout and word dropout of training pairs, resampled in each epoch.

Each draw is a function of the seed, the epoch, the pair's index in its split and the position in
the sentence: it depends neither on batches or processes nor on where a run was resumed. Called by
the training loop (training/trainer.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtgrid.base.rows import is_token
from nmtgrid.data.batches import Batch, collate
from nmtgrid.data.dataset import Split
from nmtgrid.text.bpe import Codes
from nmtgrid.text.bpe_dropout import BpeDropout, happens, mixed
from nmtgrid.text.pipeline import Pipeline
from nmtgrid.text.vocabulary import UNKNOWN

_AT_ONCE = 10_000
"""Number of pairs segmented at once."""
_BPE, _WORDS = 0, 2
"""Random streams of the source; those of the target have the next numbers."""


class ResegmentedPairs:
    """The pairs of a split under BPE-dropout: the same words, re-segmented in each epoch.

    A sentence whose new segmentation is longer than `max_length` (0: no limit) keeps its plain one,
    so that every epoch has the same pairs.
    """

    def __init__(
        self,
        split: Split,
        pipeline: Pipeline,
        probabilities: Sequence[float],
        *,
        seed: int,
        max_length: int,
    ) -> None:
        """`probabilities` are those of the source and the target (0: plain segmentation).

        Raises ValueError for a positive probability on a side without BPE codes.
        """
        self._split, self._seed, self._max_length = split, seed, max_length
        self._dropouts: list[BpeDropout | None] = []
        for side, probability in zip(
            (pipeline.source, pipeline.target), probabilities, strict=True
        ):
            if not probability:
                self._dropouts.append(None)
            elif isinstance(side.codes, Codes):
                self._dropouts.append(BpeDropout(side.codes, side.vocabulary, probability))
            else:
                raise ValueError("BPE-dropout of a side without codes of BPE")

    def lengths(self, pairs: NDArray[Any], epoch: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the source and target lengths [N] of these pairs in an epoch."""
        sides = []
        for side in (0, 1):
            parts = numpy.split(pairs, range(_AT_ONCE, len(pairs), _AT_ONCE))
            sides.append(numpy.concatenate([self._segment(side, p, epoch)[1] for p in parts]))
        return sides[0], sides[1]

    def batch(self, pairs: NDArray[Any], epoch: int) -> Batch:
        """Return these pairs as one padded batch, as segmented in an epoch."""
        source, target = (
            [ids.tolist() for ids in _sentences(*self._segment(side, pairs, epoch))]
            for side in (0, 1)
        )
        return collate(source, target, pairs.tolist())

    def _segment(
        self, side: int, pairs: NDArray[Any], epoch: int
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the concatenated ids of one side of the pairs, and the lengths [N]."""
        plain = self._split.tokens(side, pairs)
        dropout = self._dropouts[side]
        if dropout is None:
            return plain
        tokens, lengths = dropout.segment(*plain, _keys(self._seed, epoch, _BPE + side, pairs))
        is_long = lengths > (self._max_length or numpy.inf)
        if not is_long.any():
            return tokens, lengths
        sentences = zip(is_long, _sentences(*plain), _sentences(tokens, lengths), strict=True)
        tokens = numpy.concatenate([old if is_old else new for is_old, old, new in sentences])
        return tokens, numpy.where(is_long, plain[1], lengths)


def drop_words(batch: Batch, probabilities: Sequence[float], seed: int, epoch: int) -> Batch:
    """Return the batch with source and target input tokens replaced by `<unk>`.

    Each token is replaced with the probability of its side; begin and end symbols and the predicted
    targets are kept. The model sees that there is a word, not which one (Bowman et al. 2016).
    Sennrich et al. (2016) drop whole words with 0.1 on either side, zeroing their embeddings.
    """
    source, target = probabilities
    pairs = batch.indices.numpy()
    if source:
        keys = _keys(seed, epoch, _WORDS, pairs)
        # The end symbol is kept.
        is_word = is_token(batch.source_lengths - 1, batch.source.shape[1])
        is_dropped = is_word & _is_dropped(keys, batch.source.shape[1], source)
        shown = batch.source.masked_fill(is_dropped, UNKNOWN)
        batch = dataclasses.replace(batch, source=shown)
    if target:
        keys = _keys(seed, epoch, _WORDS + 1, pairs)
        # The begin symbol is kept.
        is_dropped = batch.is_target & _is_dropped(keys, batch.target_input.shape[1], target)
        is_dropped[:, 0] = False
        shown = batch.target_input.masked_fill(is_dropped, UNKNOWN)
        batch = dataclasses.replace(batch, target_input=shown)
    return batch


def _is_dropped(keys: NDArray[numpy.uint64], size: int, probability: float) -> Tensor:
    """Return [B, size], True where a word is dropped."""
    return torch.from_numpy(happens(mixed(keys[:, None], numpy.arange(size)), probability))


def _keys(seed: int, epoch: int, stream: int, pairs: NDArray[Any]) -> NDArray[numpy.uint64]:
    """Return a key for the random numbers of each pair in an epoch."""
    state = numpy.random.SeedSequence([seed, epoch, stream]).generate_state(1, numpy.uint64)
    return mixed(state.astype(numpy.uint64), pairs)


def _sentences(tokens: NDArray[Any], lengths: NDArray[Any]) -> list[NDArray[Any]]:
    return numpy.split(tokens, numpy.cumsum(lengths)[:-1])
