"""What writing costs in each cell of the grid: the oracle's ground. Algorithm 1, line 1."""

from __future__ import annotations

import torch
from torch import Tensor

from nmtgrid.data.batches import Batch
from nmtgrid.layers.kernels.linear_loss import linear_nll
from nmtgrid.models.api import TranslationModel
from nmtgrid.online.paths import area_sites, is_cell


def refuse_oracle(model: TranslationModel) -> str:
    """Return why the oracle cannot be had of this model; nothing where it can."""
    if model.traits.every_cell:
        return ""
    if not model.traits.prefix_safe:
        return str(model.refusal())
    return (
        f"The oracle needs the cost of writing in every cell of the grid, but what this "
        f"`{model.architecture}` predicts depends on the path that led there: take a `pervasive` "
        "with `--set model.source_causal=true`."
    )


@torch.no_grad()
def writing_costs(model: TranslationModel, batch: Batch) -> Tensor:
    """Return [B, T, S]: -log p of true token t with j + 1 source tokens read; padding is 0.

    For models with `traits.every_cell`, in evaluation mode.
    """
    cells = grid_cells(batch)
    return cell_costs(model, batch, cells, model.features(batch, area_sites(cells)))


def grid_cells(batch: Batch) -> Tensor:
    """Return [B, T, S], True where the grid has no padding."""
    rows, columns = batch.target_output.shape[1], batch.source.shape[1]
    return is_cell(batch.source_lengths, batch.target_lengths, rows, columns)


def cell_costs(model: TranslationModel, batch: Batch, cells: Tensor, features: Tensor) -> Tensor:
    """Return `writing_costs` from the features [M, D] of the True `cells` [B, T, S], in order.

    Without gradient; nothing else of the model runs than the classifier.
    """
    places = cells.nonzero()
    held = model.classifier()
    targets = batch.target_output[places[:, 0], places[:, 1]]
    costs = torch.zeros(cells.shape, device=features.device)
    costs[cells] = linear_nll(features, held.weight, held.bias, targets).float()
    return costs
