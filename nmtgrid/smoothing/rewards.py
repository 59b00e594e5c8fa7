"""What drawn sentences are worth: BLEU and CIDEr, and the weights that correct for the drawing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy
import torch
from torch import Tensor

from nmtgrid.data.batches import Batch
from nmtgrid.data.dataset import PictureSplit, Split
from nmtgrid.metrics.cider import Cider, DocumentFrequencies
from nmtgrid.metrics.ngrams import Ragged
from nmtgrid.metrics.sentence_counts import bleu_counts, sentence_bleus
from nmtgrid.text.vocabulary import PAD

RewardOf = Callable[[Batch, Tensor], Tensor]
"""From a batch and samples [B, L, T] to rewards [B, L], of which the truth's own is at most 1."""
_DOCUMENTS = 200_000


def bleu_reward(batch: Batch, tokens: Tensor) -> Tensor:
    """Return the smoothed sentence BLEU [B, L], from 0 to 1, of samples [B, L, T].

    It is that of units, subwords where there are such, and with several references the best.
    """
    count = tokens.shape[1]
    lengths = (batch.target_lengths - 1).cpu()
    ours = _ragged(tokens.flatten(0, 1), lengths.repeat_interleave(count))
    best = torch.zeros(tokens.shape[:2], dtype=torch.double)
    for theirs, wanted in _reference_sets(batch):
        held = _ragged(theirs.repeat_interleave(count, 0), wanted.repeat_interleave(count))
        scores = torch.from_numpy(sentence_bleus(bleu_counts(ours, held)) / 100.0)
        scores = scores.view_as(best).masked_fill(wanted[:, None] == 0, 0.0)
        best = torch.maximum(best, scores)
    return best.to(tokens.device)


def cider_reward(train: Split) -> RewardOf:
    """Return CIDEr-D as a reward, by the document frequencies of a training split.

    It is relative to what the truth itself gets. A document is a picture's captions, or a
    sentence; of a large corpus the first 200,000 count.
    """
    scorer = Cider(DocumentFrequencies.count(documents(train)))

    def reward(batch: Batch, tokens: Tensor) -> Tensor:
        rows = tokens.tolist()
        lengths = (batch.target_lengths - 1).tolist()
        truths = [row[:n] for row, n in zip(batch.target_output.tolist(), lengths, strict=True)]
        references = [[truth] for truth in truths]
        if batch.references is not None:
            references = [
                [[token for token in one if token != PAD] for one in several if any(one)]
                for several in batch.references.tolist()
            ]
        found = []
        for several, truth, theirs in zip(rows, truths, references, strict=True):
            held = [sample[: len(truth)] for sample in several]
            own, *scores = scorer.scores([truth, *held], theirs)
            found.append([score / own if own else 1.0 for score in scores])
        return torch.tensor(found, dtype=torch.double, device=tokens.device)

    return reward


def documents(train: Split) -> Iterator[list[list[int]]]:
    """Yield the references of each picture, or each sentence alone, at most 200,000 times."""
    if isinstance(train, PictureSplit):
        for place in range(min(_DOCUMENTS, len(train.pictures))):
            yield train.reference_ids(place)
    else:
        for place in range(min(_DOCUMENTS, len(train))):
            yield [train.target(place)]


def importance_weights(rewards: Tensor, logs: Tensor) -> Tensor:
    """Return the weights [B, L] of samples whose chance was exp(logs), each row summing to one.

    rewards [B, L] are divided by the temperature already. Eq. (E.8).
    """
    return (rewards - logs).softmax(1)


def _reference_sets(batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield references [B, ...] and their lengths [B], on the CPU; 0 where there is none."""
    if batch.references is None:
        yield batch.target_output, (batch.target_lengths - 1).cpu()
        return
    for one in batch.references.unbind(1):
        yield one, (one != PAD).sum(1).cpu()


def _ragged(tokens: Tensor, lengths: Tensor) -> Ragged:
    """Return the first `lengths` [R] tokens of each row [R, N], one after the other."""
    held = tokens.cpu()
    inside = torch.arange(held.shape[1]) < lengths[:, None]
    return Ragged(held[inside].numpy().astype(numpy.int32), lengths.numpy().astype(numpy.int64))


def relative_units(rewards: Tensor, lengths: Tensor, others: Tensor) -> Tensor:
    """Return rewards [B, L] of sentences of `lengths` [B], counted in substitutions.

    Each is worth 1 + log(others [B]).

    The truth has 0, and a sentence without any reward what one has whose tokens are all changed.
    """
    unit = 1.0 + others.clamp(min=1).double().log()
    return (rewards - 1.0) * lengths.double()[:, None] * unit[:, None]
