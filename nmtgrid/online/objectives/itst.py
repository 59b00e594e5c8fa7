"""The objective `itst`: likelihood under a decreasing threshold, and losses on transport.

The matrices of layers/transformer/transport.py say how much information flows from each source
token to each target token. They are trained through the attention that they weight. Two further
losses bring the sum of each row to 1 and its mass close to the diagonal, and a decreasing threshold
hides what a policy with that threshold would not have read.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated

import torch
from torch import Tensor

from nmtgrid.base.config import ABOVE_0, FROM_0, SHARE
from nmtgrid.base.rows import is_token
from nmtgrid.data.batches import Batch
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.online.objectives.dynamic import read_share
from nmtgrid.online.policies import ITST as Policy
from nmtgrid.training.api import BaseObjective, LossParts, ObjectiveKind
from nmtgrid.training.likelihood import SiteTargets
from nmtgrid.training.settings import SmoothedSettings


def latency_cost(transport: Tensor, source_lengths: Tensor, target_lengths: Tensor) -> Tensor:
    """Return [B]: the cost of transport [B, N, T, S] off the diagonal, the mean over blocks.

    The sum over t, j of C_tj times the share of row t that comes from j, where C_tj = max(|j - t
    |x| / |y|| - 1, 0) / (|x| |y|), t and j counting from 1. Lengths include end symbols.
    """
    sizes = [
        lengths.to(transport.dtype)[:, None, None] for lengths in (source_lengths, target_lengths)
    ]
    source, target = sizes
    rows, columns = (
        torch.arange(1, size + 1, device=transport.device) for size in transport.shape[2:]
    )
    distance = (columns - rows[:, None] * source / target).abs() - 1.0
    costs = distance.clamp(min=0.0) / (source * target)
    shares = transport / transport.sum(-1, keepdim=True)
    return _over_target((shares * costs[:, None]).sum(-1), target_lengths)


def norm_cost(transport: Tensor, target_lengths: Tensor) -> Tensor:
    """Return [B]: the sum over t of |1 - the sum of row t| of transport [B, N, T, S].

    The mean over blocks.
    """
    return _over_target((transport.sum(-1) - 1.0).abs(), target_lengths)


def _over_target(values: Tensor, lengths: Tensor) -> Tensor:
    """Return [B]: the mean over blocks of the sums over target positions of values [B, N, T]."""
    counts = is_token(lengths, values.shape[2])[:, None]
    return values.masked_fill(~counts, 0.0).sum(2).mean(1)


@dataclasses.dataclass(frozen=True)
class ITSTSettings(SmoothedSettings):
    """Settings of training information transport."""

    whole_source_updates: Annotated[int, FROM_0] = 4000
    """Number of initial updates with the whole source, before the threshold limits it."""
    threshold_decay: Annotated[float, ABOVE_0] = 100_000
    """Updates after which the threshold has fallen by 63% of the way from 1 to
    `least_threshold`."""
    least_threshold: Annotated[float, SHARE] = 0.5
    """Final value of the threshold."""
    latency_weight: Annotated[float, FROM_0] = 1.0
    """Weight of the loss on transport far from the diagonal."""
    norm_weight: Annotated[float, FROM_0] = 0.05
    """Weight of the loss on tokens whose total information is not 1. If it is too large, all
    information comes from a single source token."""
    validate_delta: Annotated[float, ABOVE_0] = 0.5
    """Threshold in validation, for translations and for the loss."""

    def threshold(self, update: int) -> float | None:
        """Return the threshold after `update` updates; None while the whole source is seen."""
        if update < self.whole_source_updates:
            return None
        share = math.exp(-update / self.threshold_decay)
        return self.least_threshold + (1.0 - self.least_threshold) * share


class TransportLikelihood(BaseObjective[ITSTSettings]):
    """Likelihood with the source limited by a falling threshold, plus two losses on transport.

    In each decoder block a target token sees the source tokens that it needs to receive the
    information delta = `least_threshold` + (1 - `least_threshold`) exp(-u / `threshold_decay`),
    after u updates (Zhang and Feng, 2022, "Information-Transport-based Policy for Simultaneous
    Translation"). In validation delta is `validate_delta`, and the best weights are chosen by the
    sum of likelihood and both losses.

    Departs: In the authors' code (github.com/ictnlp/ITST) both losses are computed over the padded
    batch, the one on total information as a Euclidean distance. Here both are sums over sentences,
    independent of the batch. The loss on total information therefore grows faster with the number
    of tokens, and gets a smaller weight: with a weight of 1 all information would come from one
    source token early in training. `TransportCache` says how the threshold limits the source.
    """

    def check(self, model: TranslationModel) -> None:
        if model.traits.readiness != "transport":
            raise model.no_mechanism("transport")

    def agent(self) -> Policy:
        return Policy(self.settings.validate_delta)

    def loss(self, model: TranslationModel, batch: Batch) -> LossParts:
        settings, lengths = self.settings, (batch.source_lengths, batch.target_lengths)
        tokens = batch.token_count
        threshold: float | None = settings.validate_delta
        if model.training:
            threshold = settings.threshold(batch.update or 0)
        features, transport, paths = model.features_with_transport(batch, threshold)
        total, nll = SiteTargets.at(batch, PredictionSites.offline(batch)).cross_entropy(
            features, model.classifier(), label_smoothing=settings.label_smoothing
        )
        latency = latency_cost(transport, *lengths).sum()
        norm = norm_cost(transport, lengths[1]).sum()
        price = settings.latency_weight * latency + settings.norm_weight * norm
        extra = {
            "latency_loss": latency.detach(),
            "norm_loss": norm.detach(),
            "information": _over_target(transport.detach().sum(-1), lengths[1]).sum(),
            "reads": read_share(paths, batch),
        }
        criterion = None if model.training else nll + price.detach().to(nll.dtype)
        return LossParts(total + price.to(total.dtype), tokens, nll, extra, criterion)


ITST = ObjectiveKind(
    "itst",
    "online: a Transformer with information transport (ITST), under a decreasing threshold",
    ITSTSettings,
    TransportLikelihood,
    takes_samples=False,
    takes_two_passes=False,
)
