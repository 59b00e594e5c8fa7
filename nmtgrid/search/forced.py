"""Teacher forcing over a split: what a model makes of the references, and how it aligns them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy
import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch, cut_by_length
from nmtgrid.data.captioning.dataset import region_names
from nmtgrid.data.dataset import Split
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.search.traces import Trace
from nmtgrid.text.pipeline import Pipeline

_CHUNK = 1024
"""Predictions classified at once: never [M, V] of a whole batch."""


@torch.no_grad()  # not inference_mode: autocast keeps no cast weights there
def forced_log_probabilities(models: Sequence[TranslationModel], batch: Batch) -> Tensor:
    """Return [B, T], the log-probability of each true target token, zero on padding.

    The end symbol is counted; `models` (in evaluation mode) are averaged in probability.
    """
    sites = PredictionSites.offline(batch)
    targets = batch.target_output[sites.sentence, sites.position]
    each = torch.stack([_of_sites(model, batch, sites, targets) for model in models])
    values = each.logsumexp(0) - math.log(len(models))
    result = torch.zeros(batch.target_output.shape, device=values.device)
    result[sites.sentence, sites.position] = values
    return result


def _of_sites(
    model: TranslationModel, batch: Batch, sites: PredictionSites, targets: Tensor
) -> Tensor:
    features = model.features(batch, sites)
    values = []
    for first in range(0, len(targets), _CHUNK):
        logits = model.classify(features[first : first + _CHUNK]).float()
        wanted = targets[first : first + _CHUNK, None]
        values.append(logits.gather(1, wanted)[:, 0] - logits.logsumexp(1))
    return torch.cat(values)


AlignmentKind = Literal["weights", "energies"]
_WINDOW = 2048
"""Sentences held at once; they are put in order of length among themselves."""


def forced_traces(
    model: TranslationModel,
    pipeline: Pipeline,
    split: Split,
    *,
    kind: AlignmentKind = "weights",
    align: bool = True,
    device: torch.device | str = "cpu",
    bf16: bool = False,
    batch_tokens: int = 4000,
    advance: Callable[[int, int], None] = lambda lines, tokens: None,
) -> Iterator[Trace]:
    """Yield a trace of each pair's reference, in order: log-probabilities, and the alignment.

    `kind` is what the alignment holds: attention weights or shares of max-pooled channels, Eq.
    (3.22)-(3.23), or the energies of CoNLL Eq. (5)-(7). `advance` is told of the sentences and
    target tokens of each batch. Raises ConfigError if `align` and the model does not.
    """
    if align and not model.traits.aligns:
        raise ConfigError(
            f"`{model.architecture}` yields no alignments.", "Use a model that aligns."
        )
    place = torch.device(device)
    model = model.to(place).eval()
    for first in range(0, len(split), _WINDOW):
        window = numpy.arange(first, min(first + _WINDOW, len(split)))
        found: dict[int, Trace] = {}
        for indices in cut_by_length(
            split.source_lengths, split.target_lengths, window, batch_tokens, batch_tokens * 64
        ):
            batch = split.batch(indices).to(place)
            for trace in _of_batch(model, pipeline, batch, kind if align else None, bf16):
                found[trace.line] = trace
            advance(len(batch), int(batch.target_lengths.sum()))
        yield from (found[line] for line in sorted(found))


def _of_batch(
    model: TranslationModel,
    pipeline: Pipeline,
    batch: Batch,
    kind: AlignmentKind | None,
    bf16: bool,
) -> Iterator[Trace]:
    with torch.no_grad(), torch.autocast(batch.source.device.type, torch.bfloat16, enabled=bf16):
        values = forced_log_probabilities([model], batch).float().cpu()
        tables = None if kind is None else model.alignments(batch, kind).float().cpu().numpy()
    for row, index in enumerate(batch.indices.tolist()):
        source = _source(batch, row, pipeline)
        width, height = int(batch.source_lengths[row]), int(batch.target_lengths[row])
        target = batch.target_output[row, : height - 1].tolist()
        scores = values[row, :height].tolist()
        yield Trace(
            line=index + 1,
            source=source,
            target=pipeline.target_vocabulary.decode(target),
            text=pipeline.restore(target),
            log_probabilities=scores,
            log_probability=sum(scores),
            score=sum(scores) / height,
            alignment=None if tables is None else tables[row, :height, :width],
            kind=kind or "weights",
            source_end=batch.source.dim() == 2,
        )


def _source(batch: Batch, row: int, pipeline: Pipeline) -> list[str]:
    """Return the source units of a pair, or what its picture's regions are called."""
    count = int(batch.source_lengths[row])
    if batch.source.dim() == 3:
        return region_names(count)
    return pipeline.source_vocabulary.decode(batch.source[row, : count - 1].tolist())
