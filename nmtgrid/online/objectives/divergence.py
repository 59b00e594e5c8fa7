"""The objective `divergence`: a reader learns how much the rest of the source would change.

If the prediction from the source read so far equals that from the whole source, there is no need
to wait (DaP-SiMT, Zhao et al., EMNLP 2023; PsFuture, Zhao et al., EMNLP 2024, without training). On
a grid this label is exact and available at every cell: the last column of a row has read the whole
source.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Iterator
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from nmtgrid.base.config import ABOVE_0, FROM_0, FROM_1, INSIDE_0_1
from nmtgrid.base.rows import host_values, ragged_positions
from nmtgrid.data.batches import Batch
from nmtgrid.layers.kernels.linear_loss import Measure, linear_divergence
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.online.objectives.dynamic import (
    along,
    cell_loss,
    check_grid,
    read_share,
    reader_paths,
)
from nmtgrid.online.oracle import cell_costs, grid_shape
from nmtgrid.online.policies import Threshold
from nmtgrid.search.paths import is_right_of, wait_k
from nmtgrid.training.api import BaseObjective, LossParts, ObjectiveKind
from nmtgrid.training.settings import SmoothedSettings


@dataclasses.dataclass(frozen=True)
class DivergenceSettings(SmoothedSettings):
    """Settings of training a reader on divergences from the prediction with the whole source."""

    only_with = types.MappingProxyType(dict.fromkeys(("k", "label_smoothing"), ("alpha", ABOVE_0)))

    measure: Measure = "kl"
    """Divergence between the prediction with the source read so far and the prediction with the
    whole source."""
    alpha: Annotated[float, FROM_0] = 1.0
    """Weight of the translation loss; 0: the translation model is not trained."""
    k: Annotated[int, FROM_1] = 1
    """The translation model is trained on the wait-k path of this k and to the right of it, as in
    `wait-k-area`."""
    validate_threshold: Annotated[float, INSIDE_0_1] = 0.5
    """Threshold of the reader in validation: it reads while the predicted divergence is at least
    this. Used for translations and for `nll`."""


class Divergence(BaseObjective[DivergenceSettings]):
    """alpha times the loss of `wait-k-area`, plus the reader's cross-entropy against divergences.

    At every cell except those of the last column the reader rho learns the divergence d in [0, 1]
    between the cell's prediction and the prediction with the whole source. Its loss is the sum over
    cells of -d log rho - (1 - d) log (1 - rho), which is least at rho = d. A `Threshold` policy
    thus reads while the divergence is at least the threshold, which controls the delay; training
    needs no lambda.

    Labels come from a pass without dropout, whose noise would count as divergence, and get no
    gradient. DaP's translation model is fixed: alpha 0, initialised from a model that was trained
    for all prefixes (`--init` with `wait-k-area`). `nll` is computed along the reader's path at
    `validate_threshold`, but the best weights are chosen by the loss itself: by likelihood, a
    reader that reads everything might be best.

    Departs: Unlike in the papers, divergences are scaled to 0 to 1, so that thresholds are as well,
    and the reader's loss is a cross-entropy. The label compares with the true rest of the source,
    whereas PsFuture makes one up in decoding.
    """

    def check(self, model: TranslationModel) -> None:
        check_grid(model, "divergence", needs_reader=True)

    def agent(self) -> Threshold:
        return Threshold(self.settings.validate_threshold)

    def loss(self, model: TranslationModel, batch: Batch) -> LossParts:
        settings, columns = self.settings, batch.source.shape[1]
        lengths = batch.source_lengths, batch.target_lengths
        size = batch.target_input.shape[1]
        sites = PredictionSites.everywhere(batch)
        with _evaluation(model), torch.no_grad():
            fixed = model.features(batch, sites)
        costs = cell_costs(model, batch, sites, fixed)
        labels = future_divergence(model, batch, sites, fixed, settings.measure)
        extra: dict[str, Tensor] = {}
        write_loss = costs.new_zeros(())
        if settings.alpha:
            features, logits = model.features_with_reading(batch, sites)
            area = is_right_of(wait_k(settings.k, lengths[0], size), *lengths, columns)
            is_written = area[sites.cells]
            write_loss = cell_loss(
                model, batch, sites, features, is_written, settings.label_smoothing
            )
            extra["write_cells"] = is_written.sum()
        else:
            logits = model.reading(batch)
        cells = _decided_cells(batch)
        decided, labels = logits.float()[cells], labels[cells]
        read_loss = binary_cross_entropy_with_logits(decided, labels, reduction="sum")
        total = settings.alpha * write_loss + read_loss
        paths = reader_paths(logits, batch.source_lengths, settings.validate_threshold)
        extra |= {
            "agent_loss": read_loss.detach(),
            "agent_error": (decided.detach().sigmoid() - labels).abs().sum(),
            "agent_cells": torch.full((), len(decided), device=decided.device),
            "divergence": labels.sum(),
            "agent_reads": read_share(paths, batch),
        }
        criterion = None if model.training else total.detach()
        tokens = batch.token_count
        return LossParts(total, tokens, along(costs, paths, batch), extra, criterion)


@torch.no_grad()
def future_divergence(
    model: TranslationModel,
    batch: Batch,
    sites: PredictionSites,
    features: Tensor,
    measure: Measure,
) -> Tensor:
    """Return [B, T, S]: the divergence of each cell from its row's last, with the whole source.

    features [M, D] are those of the sites, which are `everywhere`; padding is 0.
    """
    classifier = model.classifier()
    values = features.new_zeros(grid_shape(batch), dtype=torch.float32)
    arguments = features, classifier.weight, classifier.bias, batch.source_widths, measure
    values[sites.cells] = linear_divergence(*arguments).float()
    return values


def _decided_cells(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cells [M] of a grid [B, T, S] in which the agent decides.

    In the last column of a row there is nothing left to decide: it writes.
    """
    sentence, position = batch.target_positions
    widths = batch.source_widths
    row, column = ragged_positions(widths - 1, sum(host_values(widths)) - len(widths))
    return sentence[row], position[row], column


@contextlib.contextmanager
def _evaluation(model: TranslationModel) -> Iterator[None]:
    """Put the model into evaluation mode within the context."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


DIVERGENCE = ObjectiveKind(
    "divergence",
    "online: a reader that learns how far predictions are from those with the whole source",
    DivergenceSettings,
    Divergence,
    takes_samples=False,
    takes_two_passes=False,
)
