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
    rows, columns = batch.target_output.shape[1], batch.source.shape[1]
    cells = is_cell(batch.source_lengths, batch.target_lengths, rows, columns)
    sites = area_sites(cells)
    targets = batch.target_output[sites.sentence, sites.position]
    held = model.classifier()
    values = linear_nll(model.features(batch, sites), held.weight, held.bias, targets)
    costs = torch.zeros(cells.shape, device=values.device)
    costs[cells] = values.float()
    return costs
