"""Teacher-forced log-probabilities of given translations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nmtgrid.data.batches import Batch
from nmtgrid.models.api import Sites, TranslationModel

_CHUNK = 1024
"""Predictions classified at once: never [M, V] of a whole batch."""


@torch.no_grad()  # not inference_mode: autocast keeps no cast weights there
def forced_log_probabilities(models: Sequence[TranslationModel], batch: Batch) -> Tensor:
    """Return [B, T], the log-probability of each true target token, zero on padding.

    The end symbol is counted; `models` (in evaluation mode) are averaged in probability.
    """
    sites = Sites.offline(batch)
    targets = batch.target_output[sites.sentence, sites.position]
    each = torch.stack([_of_sites(model, batch, sites, targets) for model in models])
    values = each.logsumexp(0) - math.log(len(models))
    result = torch.zeros(batch.target_output.shape, device=values.device)
    result[sites.sentence, sites.position] = values
    return result


def _of_sites(model: TranslationModel, batch: Batch, sites: Sites, targets: Tensor) -> Tensor:
    features = model.features(batch, sites)
    values = []
    for first in range(0, len(targets), _CHUNK):
        logits = model.classify(features[first : first + _CHUNK]).float()
        wanted = targets[first : first + _CHUNK, None]
        values.append(logits.gather(1, wanted)[:, 0] - logits.logsumexp(1))
    return torch.cat(values)
