"""Teacher forcing over a split: log-probabilities of the references, and their alignments.

Called by `Translator.score` and by `decode --forced`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtgrid.base.devices import autocast, without_gradients
from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch, cut_by_length
from nmtgrid.data.captioning.dataset import region_names
from nmtgrid.data.dataset import Split
from nmtgrid.models.api import AlignmentKind, PredictionSites, TranslationModel
from nmtgrid.search.traces import Trace
from nmtgrid.text.pipeline import Pipeline

_CHUNK = 1024
"""Number of predictions classified at once, instead of [M, V] for a whole batch."""


@without_gradients()
def forced_log_probabilities(models: Sequence[TranslationModel], batch: Batch) -> Tensor:
    """Return the log-probability [B, T] of each true target token, zero on padding.

    The end symbol is included; `models` (in evaluation mode) are averaged in probability.
    """
    sites = PredictionSites.offline(batch)
    cells = sites.sentence, sites.position
    targets = batch.target_output[cells]
    per_model = []
    for model in models:
        features = model.features(batch, sites)
        values = []
        for part, target in zip(features.split(_CHUNK), targets.split(_CHUNK), strict=True):
            # In float32 under autocast too: the sum over V types needs the precision.
            logits = model.classify(part).float()
            values.append(logits.gather(1, target[:, None])[:, 0] - logits.logsumexp(1))
        per_model.append(torch.cat(values))
    averaged = torch.stack(per_model).logsumexp(0) - math.log(len(models))
    result = torch.zeros(batch.target_output.shape, device=averaged.device)
    result[cells] = averaged
    return result


_WINDOW = 2048
"""Number of sentences in memory at once; they are sorted by length within this window."""


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
    on_progress: Callable[[int, int], None] = lambda lines, tokens: None,
) -> Iterator[Trace]:
    """Yield a trace of each pair's reference, in order: log-probabilities, and the alignment.

    `kind` is the type of the alignment: attention weights or shares of max-pooled channels, Eq.
    (3.22)-(3.23), or the energies of CoNLL Eq. (5)-(7). `on_progress` gets the numbers of sentences
    and target tokens of each batch. Raises ConfigError if `align` is set and the model has no
    alignments.
    """
    if align and not model.traits.aligns:
        raise ConfigError(
            f"`{model.architecture}` yields no alignments.", "Use a model that aligns."
        )
    device = torch.device(device)
    model = model.to(device).eval()
    for first in range(0, len(split), _WINDOW):
        window = numpy.arange(first, min(first + _WINDOW, len(split)))
        # Batches of similar lengths, within a window that limits the traces in memory.
        traces: list[Trace] = []
        for indices in cut_by_length(
            split.source_lengths, split.target_lengths, window, batch_tokens, batch_tokens * 64
        ):
            batch = split.batch(indices).to(device)
            with torch.no_grad(), autocast(device, bf16):
                scores = forced_log_probabilities([model], batch).float().cpu()
                alignments = None
                if align:
                    alignments = model.alignments(batch, kind).float().cpu().numpy()
            traces += _traces(pipeline, batch, scores, alignments, kind if align else "weights")
            on_progress(len(batch), batch.token_count)
        # In the order of the split, whatever the batches were.
        yield from sorted(traces, key=lambda trace: trace.line)


def _traces(
    pipeline: Pipeline,
    batch: Batch,
    scores: Tensor,
    alignments: NDArray[numpy.float32] | None,
    kind: AlignmentKind,
) -> Iterator[Trace]:
    """Yield the trace of each row, from scores [B, T] and alignments [B, T, S]."""
    is_text = batch.source.dim() == 2
    for row, index in enumerate(batch.indices.tolist()):
        width, height = int(batch.source_lengths[row]), int(batch.target_lengths[row])
        source = region_names(width)
        if is_text:
            ids = batch.source[row, : width - 1].tolist()
            source = pipeline.source_vocabulary.decode(ids)
        target = batch.target_output[row, : height - 1].tolist()
        log_probabilities = scores[row, :height].tolist()
        yield Trace(
            line=index + 1,
            source=source,
            target=pipeline.target_vocabulary.decode(target),
            text=pipeline.restore(target),
            log_probabilities=log_probabilities,
            log_probability=sum(log_probabilities),
            score=sum(log_probabilities) / height,
            alignment=None if alignments is None else alignments[row, :height, :width],
            kind=kind,
            source_end=is_text,
        )
