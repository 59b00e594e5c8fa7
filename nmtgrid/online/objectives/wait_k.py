"""The wait-k objectives (section 4.3): along one path, sampled paths, or in an area.

All are sums over sites of weight x cross-entropy, like maximum likelihood (training/likelihood),
with limited reads: along one wait-k path (4.28), along paths with sampled k (4.30), or at all cells
to the right of one (4.34). `k` counts tokens, including the end symbol of the source.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import torch
from torch import Tensor

from nmtgrid.base.config import FROM_0, FROM_1, from_json
from nmtgrid.base.errors import ConfigError, ModelError
from nmtgrid.data.batches import Batch
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.models.directory import read_run_settings
from nmtgrid.online.policies import WaitK
from nmtgrid.search.paths import (
    area_sites,
    binary_weights,
    exact_weights,
    finish_reading,
    sample_k,
    wait_k,
)
from nmtgrid.training.api import BaseObjective, LossParts, ObjectiveKind, Settings
from nmtgrid.training.likelihood import site_loss
from nmtgrid.training.settings import SmoothedSettings

_SEED = 4_057_218


@dataclasses.dataclass(frozen=True)
class WaitKSettings(SmoothedSettings):
    """Settings of training along one wait-k path."""

    k: Annotated[int, FROM_1] = 7
    """Source tokens read before the first write; one more is read before each later write."""
    finish_reading: bool = False
    """Predict the end symbol of the target only after the whole source has been read (appendix C,
    tfR)."""


class _Online(BaseObjective[Settings]):
    def check(self, model: TranslationModel) -> None:
        model.check_prefixes()


class WaitKLikelihood(_Online[WaitKSettings]):
    """Maximum likelihood along the wait-k path. Eq. (4.28)."""

    def agent(self) -> WaitK:
        return WaitK(self.settings.k, self.settings.finish_reading)

    def loss(self, model: TranslationModel, batch: Batch) -> LossParts:
        paths = _wait_k(batch, self.settings.k, self.settings.finish_reading)
        sites = PredictionSites.along(batch, paths, in_range=True)
        return site_loss(model, batch, sites, label_smoothing=self.settings.label_smoothing)


@dataclasses.dataclass(frozen=True)
class SampledSettings(SmoothedSettings):
    """Settings of training along sampled wait-k paths."""

    paths: Annotated[int, FROM_1] = 1
    """M, paths sampled for each sentence in each update."""
    finish_reading: bool = False
    """Predict the end symbol of the target only after the whole source has been read (appendix C,
    tfR)."""
    validate_k: Annotated[int, FROM_1] = 5
    """k of the translations in validation; the validation loss is computed along sampled paths."""


class SampledWaitK(_Online[SampledSettings]):
    """The mean of the likelihoods along M paths, k drawn uniformly from [1..|x|]. Eq. (4.30).

    A source is encoded once for all its paths if the encoding does not depend on the reads. In
    validation the same paths are sampled each time.

    Departs: As printed, |x| is that of the batch's longest sentence. Here it is the length of each
    sentence.
    """

    def agent(self) -> WaitK:
        return WaitK(self.settings.validate_k, self.settings.finish_reading)

    def loss(self, model: TranslationModel, batch: Batch) -> LossParts:
        settings, count = self.settings, self.settings.paths
        # Training draws from the global generator, whose state is saved in checkpoints. Validation
        # has its own with a fixed seed: its losses are comparable, and training's draws are not
        # disturbed.
        generator = None if model.training else torch.Generator().manual_seed(_SEED)
        k = sample_k(batch.source_lengths, count, generator)
        # M paths of a sentence are M rows of a larger batch, whose source is encoded once.
        several, rows = batch.repeated(count)
        paths = _wait_k(several, k, settings.finish_reading)
        sites = PredictionSites.along(several, paths, in_range=True)
        tokens = batch.token_count
        if count > 1 and model.traits.every_cell:
            # One grid contains the paths of all draws: the sites point back to the sentences' rows,
            # and the network runs once over the original batch.
            sites = dataclasses.replace(sites, sentence=rows[sites.sentence])
            several = batch
        weights = sites.position.new_full((len(sites),), 1 / count, dtype=torch.float32)
        parts = site_loss(model, several, sites, weights, settings.label_smoothing)
        return dataclasses.replace(parts, tokens=tokens)


@dataclasses.dataclass(frozen=True)
class AreaSettings(SmoothedSettings):
    """Settings of training on all cells of a wait-k path and to the right of it."""

    k: Annotated[int, FROM_1] = 1
    """k of the wait-k path that bounds the area."""
    weights: Literal["binary", "exact"] = "binary"
    """Weight of a cell: 1 (`binary`), or the share of all paths in the area that write there
    (`exact`)."""
    cells_per_token: Annotated[float, FROM_0] = 0.0
    """Average number of cells sampled per target token, weighted so that the expected loss stays
    the same; fewer cells make the classifier cheaper. 0: all cells."""
    validate_k: Annotated[int, FROM_1] = 5
    """k of the translations in validation."""


class WaitKArea(_Online[AreaSettings]):
    """The likelihood at every cell right of a wait-k path, weighted. Eq. (4.34), (4.35).

    The loss is the printed sum, over about |x| / 2 cells per target token with binary weights. The
    logged likelihood is the weighted mean over the cells of a batch, times the number of tokens.

    Departs: The printed closed form of the exact weights is wrong. These are computed by counting
    paths.
    """

    def check(self, model: TranslationModel) -> None:
        super().check(model)
        if not model.traits.every_cell:
            raise ConfigError(
                "`wait-k-area` trains predictions at every cell of the grid, but a prediction of "
                f"`{model.architecture}` depends on the path to the cell.",
                "Use `--objective wait-k-sampled`, or train a `pervasive`.",
            )

    def agent(self) -> WaitK:
        return WaitK(self.settings.validate_k)

    def loss(self, model: TranslationModel, batch: Batch) -> LossParts:
        settings = self.settings
        weigh = binary_weights if settings.weights == "binary" else exact_weights
        lengths = batch.source_lengths, batch.target_lengths
        shares = weigh(_wait_k(batch, settings.k), *lengths, batch.source.shape[1])
        if model.training and settings.cells_per_token:
            # Cells are sampled so that about `expected` of them are left.
            expected = settings.cells_per_token * batch.token_count
            chance = expected / max(int((shares > 0).sum()), 1)
            if chance < 1:
                # A cell's expected weight remains its share, so the gradient is unbiased.
                is_drawn = torch.rand(shares.shape, device=shares.device) < chance
                shares = shares * is_drawn / chance
        area = shares > 0
        sites = dataclasses.replace(area_sites(area), in_range=True)
        weights = shares[sites.cells]
        parts = site_loss(model, batch, sites, weights, settings.label_smoothing)
        # The logged likelihood is a mean over cells times tokens: comparable with other objectives.
        # If few cells are sampled, none may be left.
        cells = weights.sum().clamp(min=1e-9)
        return dataclasses.replace(parts, nll=parts.nll * (parts.tokens / cells))


def _wait_k(batch: Batch, k: int | Tensor, to_the_end: bool = False) -> Tensor:
    paths = wait_k(k, batch.source_lengths, batch.target_input.shape[1])
    if not to_the_end:
        return paths
    return finish_reading(paths, batch.source_lengths, batch.target_lengths)


WAIT_K = ObjectiveKind(
    "wait-k",
    "online: maximum likelihood along one wait-k path",
    WaitKSettings,
    WaitKLikelihood,
)
WAIT_K_SAMPLED = ObjectiveKind(
    "wait-k-sampled",
    "online: maximum likelihood along wait-k paths, with k sampled for each sentence",
    SampledSettings,
    SampledWaitK,
)
WAIT_K_AREA = ObjectiveKind(
    "wait-k-area",
    "online: maximum likelihood at all cells of a wait-k path and to the right of it",
    AreaSettings,
    WaitKArea,
)


def trained_k(folder: str | Path) -> int | None:
    """Return the k of the wait-k path that the model in `folder` was trained along.

    None if it was trained with another objective, which may cover every k. Raises ModelError if
    `folder` is not a model directory or its settings are damaged.
    """
    settings = read_run_settings(folder)
    if settings.get("objective_name") != WAIT_K.name:
        return None
    try:
        objective = settings.get("objective") or {}
        return from_json(WaitKSettings, objective, "settings.objective.").k
    except ConfigError as fault:
        problem = f"{Path(folder) / 'config.json'}: {' '.join(fault.faults)}"
        raise ModelError(problem, "Restore a copy.") from fault
