"""Rewards of sampled sentences (E.10, E.11): BLEU and CIDEr, and their importance weights (E.8)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Protocol

import numpy
import torch
from torch import Tensor

from nmtgrid.data.batches import Batch
from nmtgrid.data.dataset import PictureSplit, Split
from nmtgrid.metrics.cider import Cider, DocumentFrequencies
from nmtgrid.metrics.ngrams import Ragged, bleu_counts, sentence_bleus
from nmtgrid.text.vocabulary import PAD

_DOCUMENTS = 200_000


class Reward(Protocol):
    """The similarity of a sampled sentence to the reference."""

    def __call__(self, batch: Batch, tokens: Tensor) -> Tensor:
        """Return the rewards [B, L] of samples [B, L, T]."""
        ...

    def loss_of_one(self, length: int) -> float:
        """Return the share of its reward that a sentence of `length` tokens loses by a change.

        This is the mean over the positions of one substitution, for a sentence whose tokens are all
        different and have the same weight.
        """
        ...


class BleuReward:
    """The smoothed sentence BLEU, from 0 to 1.

    It compares units (subwords, if any); with several references the best score counts.
    """

    def __call__(self, batch: Batch, tokens: Tensor) -> Tensor:
        count = tokens.shape[1]
        lengths = (batch.target_lengths - 1).cpu()
        # Samples are as long as their reference, because tokens are only substituted.
        samples = _ragged(tokens.flatten(0, 1), lengths.repeat_interleave(count))
        best = torch.zeros(tokens.shape[:2], dtype=torch.double)
        sets = [(batch.target_output, lengths)]
        if batch.references is not None:
            sets = [(ids, (ids != PAD).sum(1).cpu()) for ids in batch.references.unbind(1)]
        for references, reference_lengths in sets:
            reference = _ragged(
                references.repeat_interleave(count, 0), reference_lengths.repeat_interleave(count)
            )
            scores = torch.from_numpy(sentence_bleus(bleu_counts(samples, reference)) / 100.0)
            # Pictures have different numbers of references; missing ones are empty.
            scores = scores.view_as(best).masked_fill(reference_lengths[:, None] == 0, 0.0)
            best = torch.maximum(best, scores)
        return best.to(tokens.device)

    @staticmethod
    @functools.cache
    def loss_of_one(length: int) -> float:
        if not length:
            return 1.0
        # Computed exactly, by scoring every single substitution, and cached by length.
        lengths = torch.full((length,), length)
        reference = torch.arange(length).expand(length, -1)
        changed, references = _ragged(_each_changed(length), lengths), _ragged(reference, lengths)
        return 1.0 - float(sentence_bleus(bleu_counts(changed, references)).mean()) / 100.0


class CiderReward:
    """CIDEr-D with the document frequencies of a training split.

    A document is a picture's captions, or a sentence; of a large corpus the first 200,000 count.
    """

    def __init__(self, train: Split) -> None:
        self._scorer = Cider(DocumentFrequencies.count(documents(train)))

    def __call__(self, batch: Batch, tokens: Tensor) -> Tensor:
        rows = tokens.tolist()
        lengths = (batch.target_lengths - 1).tolist()
        targets = zip(batch.target_output.tolist(), lengths, strict=True)
        references = [[row[:n]] for row, n in targets]
        if batch.references is not None:
            references = [
                # `PAD` is 0: a reference that contains nothing else is missing.
                [
                    [token for token in reference if token != PAD]
                    for reference in picture_references
                    if any(reference)
                ]
                for picture_references in batch.references.tolist()
            ]
        rewards = [
            self._scorer.scores([sample[:n] for sample in samples], sentence_references)
            for samples, n, sentence_references in zip(rows, lengths, references, strict=True)
        ]
        return torch.tensor(rewards, dtype=torch.double, device=tokens.device)

    @staticmethod
    @functools.cache
    def loss_of_one(length: int) -> float:
        if not length:
            return 1.0
        # Without any document frequencies, all n-grams have the same weight.
        even = Cider(DocumentFrequencies({}, pictures=3))
        reference = list(range(length))
        own, *scores = even.scores([reference, *_each_changed(length).tolist()], [reference])
        return 1.0 - sum(scores) / (own * length)


def _each_changed(length: int) -> Tensor:
    """Return `length` rows of the numbers 0 to `length` - 1, each with another one changed."""
    changed = torch.arange(length).repeat(length, 1)
    return changed.fill_diagonal_(length)


def documents(train: Split) -> Iterator[list[list[int]]]:
    """Yield the references of each picture, or each sentence as a single one, up to 200,000."""
    if isinstance(train, PictureSplit):
        for index in range(min(_DOCUMENTS, len(train.pictures))):
            yield train.reference_ids(index)
    else:
        for index in range(min(_DOCUMENTS, len(train))):
            yield [train.target(index)]


def importance_weights(rewards: Tensor, logs: Tensor) -> Tensor:
    """Return the weights [B, L] of samples with probability exp(logs); each row sums to one.

    rewards [B, L] are already divided by the temperature. Eq. (E.8).
    """
    return (rewards - logs).softmax(1)


def _ragged(tokens: Tensor, lengths: Tensor) -> Ragged:
    """Return the first `lengths` [R] tokens of each row [R, N], one after the other."""
    tokens_on_cpu = tokens.cpu()
    inside = torch.arange(tokens_on_cpu.shape[1]) < lengths[:, None]
    return Ragged(
        tokens_on_cpu[inside].numpy().astype(numpy.int32), lengths.numpy().astype(numpy.int64)
    )


def in_substitutions(rewards: Tensor, own: Tensor, losses: Tensor) -> Tensor:
    """Return how many substitutions [B, L] would lose as much reward as each sample lacks.

    own [B] is the reward of the reference itself, losses [B] the share of it that one substitution
    loses. If the reference has no reward, the number is 0.
    """
    share = torch.where(own[:, None] > 0, rewards / own[:, None], 1.0)
    return (1.0 - share) / losses[:, None]
