"""The objective `dynamic`: a translation model and a reader, supervised by an oracle.

The oracle finds the path z* of least cost under the current translation model. The translation
model learns to write on z* and to the right of it, the reader to read left of it and to write
elsewhere (section 4.4.2). One pass over the grid gives the costs for the oracle, the features for
the model and the logits for the reader.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from nmtgrid.base.config import ABOVE_0, FROM_0, FROM_1, INSIDE_0_1
from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.online.oracle import (
    ReadingCost,
    binary_search_paths,
    cell_costs,
    grid_shape,
    oracle_paths,
    path_costs,
)
from nmtgrid.online.policies import Threshold, first_write
from nmtgrid.search.paths import is_cell, is_right_of
from nmtgrid.training.api import BaseObjective, LossParts, ObjectiveKind
from nmtgrid.training.likelihood import SiteTargets
from nmtgrid.training.settings import SmoothedSettings

Area = Literal["grid", "path"]
"""Where a reader is trained: on the whole grid or on the states that the path visits."""


@dataclasses.dataclass(frozen=True)
class DynamicSettings(SmoothedSettings):
    """Settings of training a reader on an oracle's paths."""

    only_with = types.MappingProxyType(
        dict.fromkeys(("search_from", "search_to"), ("labels", ("binary-search",)))
        | dict.fromkeys(("write", "label_smoothing"), ("alpha", ABOVE_0))
        | dict.fromkeys(("agent_area", "validate_threshold"), ("beta", ABOVE_0))
    )

    delay_weight: Annotated[float, FROM_0] = 0.0
    """Lambda, the oracle's cost of delay, in nats for each token written after the whole source has
    been read."""
    cost: ReadingCost = "delay"
    """Reading cost of the oracle; `printed` is the form of the thesis, for an ablation."""
    labels: Literal["oracle", "binary-search"] = "oracle"
    """How the target path z* is found: as the path of least cost, or by a binary search for each
    token (Guo et al., 2023)."""
    search_from: Annotated[int, FROM_1] = 1
    """Binary search: minimum number of source tokens for the first target token; it grows by |x| /
    |y| per target token."""
    search_to: int = 5
    """Binary search: maximum number of source tokens for the first target token; it grows
    likewise."""
    alpha: Annotated[float, FROM_0] = 1.0
    """Weight of the translation loss; 0: the translation model is not trained."""
    beta: Annotated[float, FROM_0] = 1.0
    """Weight of the reader's loss; 0: the reader is not trained."""
    write: Literal["right", "path"] = "right"
    """Cells at which the translation model is trained: on z* and to the right of it (4.45), or on
    z* only."""
    agent_area: Area = "grid"
    """Cells at which the reader is trained: all (4.46), or those on z* (4.43)."""
    validate_threshold: Annotated[float, INSIDE_0_1] = 0.5
    """Threshold of the reader in validation, for translations and for the loss."""

    def faults(self) -> list[str]:
        faults = super().faults()
        if self.alpha == self.beta == 0:
            faults.append("`objective.alpha` and `objective.beta` must not both be 0.")
        if self.search_to < self.search_from:
            faults.append("`objective.search_to` must be at least `objective.search_from`.")
        if self.labels == "binary-search" and self.cost == "printed":
            faults.append(
                "`objective.cost` applies to the oracle, not to the binary search: leave it out."
            )
        return faults


class Dynamic(BaseObjective[DynamicSettings]):
    """The joint objective of a translation model and its reader. Eq. (4.45), (4.46).

    Both terms are the printed sums over cells, about |x| / 2 cells per target token for the first
    and |x| for the second, Eq. (4.44); with `agent_area` path these are the cells that z* visits,
    Eq. (4.43). `write_cells` and `agent_cells` log their numbers, `agent_hits` the number of the
    reader's decisions that agree with the oracle. `nll` is computed along the reader's path at
    `validate_threshold`, so that validation judges both models together, and `oracle_nll` along z*;
    if the reader is not trained, `nll` is the one along z*. The best weights are chosen by the
    oracle's cost of the reader's path, including its delay at lambda: by likelihood alone, a reader
    that reads everything might be best.

    The oracle uses the predictions that are being trained, with their dropout, and finds a new path
    in each update. With `labels` binary-search z* is that of `binary_search_paths`, which has no
    cost of delay; lambda then matters only in validation.

    Departs: As printed, the reader does not learn its first write, and decides in the last column,
    where nothing is left to read. Here it decides from t = 0 on and never in the last column. The
    reading cost of the oracle differs as well (see `oracle_paths`).
    """

    def check(self, model: TranslationModel) -> None:
        check_grid(model, "dynamic", needs_reader=bool(self.settings.beta))

    def agent(self) -> Threshold | None:
        return Threshold(self.settings.validate_threshold) if self.settings.beta else None

    def loss(self, model: TranslationModel, batch: Batch) -> LossParts:
        settings, columns = self.settings, batch.source.shape[1]
        lengths = batch.source_lengths, batch.target_lengths
        sites = PredictionSites.everywhere(batch)
        logits: Tensor | None = None
        if settings.beta:
            # With alpha 0 the translation network is fixed: no gradient is kept for it.
            features, logits = model.features_with_reading(
                batch, sites, learn_features=bool(settings.alpha)
            )
        else:
            features = model.features(batch, sites)
        # The oracle reads the same features, without gradient: no second pass over the grid.
        costs, paths = self._label(model, batch, sites, features)
        total = costs.new_zeros(())
        extra = {"oracle_reads": read_share(paths, batch)}
        if settings.alpha:
            if settings.write == "right":
                area = is_right_of(paths, *lengths, columns)
            else:
                reads = torch.arange(1, columns + 1, device=paths.device)
                area = (reads == paths[..., None]) & batch.is_target[..., None]
            is_written = area[sites.cells]
            write_loss = cell_loss(
                model, batch, sites, features, is_written, settings.label_smoothing
            )
            total = total + settings.alpha * write_loss
            extra["write_cells"] = is_written.sum()
        if logits is not None:
            decided = reader_cells(paths, *lengths, columns, settings.agent_area)
            read_loss = reader_loss(logits, paths, decided)
            total = total + settings.beta * read_loss
            extra["agent_loss"] = read_loss.detach()
            extra["agent_hits"] = reader_hits(logits, paths, decided).sum()
            extra["agent_cells"] = decided.sum()
            extra["oracle_nll"] = along(costs, paths, batch)
            # From here on `paths` are the agent's: `nll` judges model and agent together.
            paths = reader_paths(logits, batch.source_lengths, settings.validate_threshold)
            extra["agent_reads"] = read_share(paths, batch)
        nll = along(costs, paths, batch)
        # Without a cost of delay, validation minimises `nll` itself.
        criterion = None
        if settings.delay_weight and not model.training:
            criterion = path_costs(costs, paths, *lengths, settings.delay_weight).sum()
        return LossParts(total, batch.token_count, nll, extra, criterion)

    def _label(
        self, model: TranslationModel, batch: Batch, sites: PredictionSites, features: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the costs of writing [B, T, S] and z* [B, T]."""
        settings, lengths = self.settings, (batch.source_lengths, batch.target_lengths)
        if settings.labels == "oracle":
            costs = cell_costs(model, batch, sites, features)
            return costs, oracle_paths(costs, *lengths, settings.delay_weight, settings.cost)
        predictions = batch.target_output.new_zeros(grid_shape(batch))
        costs = cell_costs(model, batch, sites, features, predictions)
        bounds = settings.search_from, settings.search_to
        return costs, binary_search_paths(costs, predictions, *lengths, *bounds)


def check_grid(model: TranslationModel, objective: str, *, needs_reader: bool) -> None:
    """Raise ConfigError for a model without predictions at every cell, or without a reader."""
    if not model.traits.every_cell:
        raise ConfigError(
            f"`{objective}` needs predictions at every cell of the grid, which "
            f"`{model.architecture}` does not have.",
            "Train a `pervasive` with `--set model.source_causal=true --set model.reader=own`.",
        )
    if needs_reader and not model.traits.reads:
        raise model.no_reader()


def cell_loss(
    model: TranslationModel,
    batch: Batch,
    sites: PredictionSites,
    features: Tensor,
    counts: Tensor,
    label_smoothing: float,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the cross-entropy at the sites where `counts` [M] is True.

    `features` [M, D] and `weights` [M] (None: ones) are those of all sites.
    """
    # The only synchronisation with the device, which alone knows how many sites count.
    chosen = counts.nonzero()[:, 0]
    loss, _ = SiteTargets.at(batch, sites)[chosen].cross_entropy(
        features.index_select(0, chosen), model.classifier(),
        None if weights is None else weights[chosen], label_smoothing,
    )  # fmt: skip
    return loss


def reader_loss(logits: Tensor, paths: Tensor, counts: Tensor) -> Tensor:
    """Return the reader's loss for the oracle's paths, a sum over the cells of all sentences.

    `counts` are the `reader_cells` of an area. "grid": at every cell, with READ left of the path
    and WRITE on it and right of it, Eq. (4.26), (4.44), (4.46); "path": only at the cells that the
    path visits, Eq. (4.43), which makes it -log p of the path, Eq. (4.12).

    Departs: As printed, the reads before the first write do not count, there is a READ in the last
    column, and the path of token t is used in the row that decides about token t + 1. Here a path
    starts with one token read, its first write counts, the last column always writes, so that the
    probabilities of all paths sum to 1, and that row uses the path of token t + 1.
    """
    # Cells that do not count may contain anything; filled first, they give no gradient either.
    decided_logits = logits.float().masked_fill(~counts, 0.0)
    reads = torch.arange(1, logits.shape[2] + 1, device=logits.device)
    # log(1 - sigmoid(x)) is logsigmoid(-x), exact where sigmoid(x) rounds to 1.
    action_logits = torch.where(reads < paths[..., None], decided_logits, -decided_logits)
    return -logsigmoid(action_logits).masked_fill(~counts, 0.0).sum()


def reader_cells(
    paths: Tensor, source_lengths: Tensor, target_lengths: Tensor, columns: int, area: Area
) -> Tensor:
    """Return [B, T, columns], True where the agent decides: not in last columns or on padding.

    "path" keeps only the states that paths [B, T] visit.
    """
    reads = torch.arange(1, columns + 1, device=paths.device)
    # In the last column there is nothing left to decide: the agent writes.
    counts = is_cell(source_lengths - 1, target_lengths, paths.shape[1], columns)
    if area == "path":
        # Row t is entered with the reads of the write before it, the first one with one token read.
        start = torch.cat([torch.ones_like(paths[:, :1]), paths[:, :-1]], 1)
        counts = counts & (reads >= start[..., None]) & (reads <= paths[..., None])
    return counts


def reader_hits(logits: Tensor, paths: Tensor, counts: Tensor) -> Tensor:
    """Return [B, T, S], True at `reader_cells` where the decision at threshold 1/2 is right."""
    reads = torch.arange(1, logits.shape[2] + 1, device=logits.device)
    # rho > 1/2 is a positive logit; left of the path reading is right.
    return ((logits > 0) == (reads < paths[..., None])) & counts


def reader_paths(logits: Tensor, source_lengths: Tensor, threshold: float) -> Tensor:
    """Return the paths [B, T] of a `Threshold` agent for logits [B, T, S], without gradient."""
    reads = torch.ones_like(source_lengths)
    path = []
    for row in logits.detach().float().sigmoid().unbind(1):
        reads = first_write(row, reads, threshold, source_lengths)
        path.append(reads)
    return torch.stack(path, 1)


def read_share(paths: Tensor, batch: Batch) -> Tensor:
    """Return the sum over target tokens of the share of the source read on paths [B, T]."""
    return (paths / batch.source_lengths[:, None])[batch.target_positions].sum()


def along(costs: Tensor, paths: Tensor, batch: Batch) -> Tensor:
    """Return the sum of costs [B, T, S] on paths [B, T]."""
    return costs[PredictionSites.along(batch, paths).cells].sum()


DYNAMIC = ObjectiveKind(
    "dynamic",
    "online: a reader that learns from an oracle when to read",
    DynamicSettings,
    Dynamic,
    takes_samples=False,
    takes_two_passes=False,
)
