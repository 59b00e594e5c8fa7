"""The objective `mma`: likelihood by expected alignments, and losses on the heads' delays.

The heads' choices are marginalised inside the network (layers/transformer/monotonic.py), so a
target token has one prediction, whose gradient reaches the selection probabilities. The likelihood
alone does not favour low latency: without a loss on delays, heads read everything first.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import torch
from torch import Tensor

from nmtgrid.base.config import FROM_0
from nmtgrid.base.rows import is_token
from nmtgrid.data.batches import Batch
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.online.policies import Monotonic
from nmtgrid.training.api import BaseObjective, LossParts, ObjectiveKind
from nmtgrid.training.likelihood import SiteTargets
from nmtgrid.training.settings import SmoothedSettings


def weighted_delays(delays: Tensor) -> Tensor:
    """Return [B, T]: the mean of the heads' delays [B, K, T], each weighted by its softmax.

    The slowest heads, which decide when a token is written, thus learn most.
    """
    return (delays.softmax(1) * delays).sum(1)


def lagging(delays: Tensor, source_lengths: Tensor, target_lengths: Tensor) -> Tensor:
    """Return [B]: the differentiable average lagging of delays [B, T], in source tokens.

    The mean of d'_t - (t - 1) |x| / |y|, where d'_t = max(d_t, d'_{t-1} + |x| / |y|): a token costs
    at least as much time as an ideal translator takes (Arivazhagan et al., 2019). Lengths include
    end symbols.
    """
    rate = (source_lengths / target_lengths).to(delays.dtype)[:, None]
    steps = torch.arange(delays.shape[1], device=delays.device)
    # d'_t - (t - 1) |x| / |y| is the running maximum of d_t - (t - 1) |x| / |y|.
    lags = (delays - steps * rate).cummax(1).values
    return _mean_over_target(lags, target_lengths)


def head_variance(delays: Tensor, target_lengths: Tensor) -> Tensor:
    """Return [B]: the variance of the delays [B, K, T] over heads, the mean over the target."""
    return _mean_over_target(delays.var(1, unbiased=False), target_lengths)


def _mean_over_target(values: Tensor, lengths: Tensor) -> Tensor:
    counts = is_token(lengths, values.shape[1])
    return values.masked_fill(~counts, 0.0).sum(1) / lengths


@dataclasses.dataclass(frozen=True)
class MMASettings(SmoothedSettings):
    """Settings of training monotonic heads."""

    delay_weight: Annotated[float, FROM_0] = 0.1
    """Lambda_avg, in nats for each source token by which the translation of a sentence lags."""
    variance_weight: Annotated[float, FROM_0] = 0.0
    """Lambda_var, weight of the variance of the heads' delays, which keeps the heads close to each
    other."""


class MonotonicLikelihood(BaseObjective[MMASettings]):
    """-log p(y | x) + lambda_avg DAL(d) + lambda_var Var(d), a sum over sentences.

    d are the delays of the heads. In training they are expected delays, and DAL is that of their
    weighted mean at each target token (Ma et al., 2020, "Monotonic multihead attention"); in
    validation they are the selected positions, as in decoding. The best weights are chosen by the
    whole sum: by likelihood alone, heads that read everything might be best.

    Departs: fairseq's implementation weighs heads by the softmax of each head's average lagging,
    and has one weight for both latency terms. Here heads are weighted at each token by the softmax
    of their delays there, as in the paper, and each term has its own weight.
    """

    def check(self, model: TranslationModel) -> None:
        if model.traits.readiness != "monotonic":
            raise model.no_mechanism("monotonic")

    def agent(self) -> Monotonic:
        return Monotonic()

    def loss(self, model: TranslationModel, batch: Batch) -> LossParts:
        settings, sites = self.settings, PredictionSites.offline(batch)
        lengths = batch.source_lengths, batch.target_lengths
        tokens = batch.token_count
        features, delays = model.features_with_delays(batch, sites)
        total, nll = SiteTargets.at(batch, sites).cross_entropy(
            features, model.classifier(), label_smoothing=settings.label_smoothing
        )
        lags = lagging(weighted_delays(delays), *lengths)
        variance = head_variance(delays, lengths[1])
        price = settings.delay_weight * lags + settings.variance_weight * variance
        # Logged per target token, that is, as means over sentences weighted by their lengths.
        shown = {"lagging": lags, "foremost": lagging(delays.amax(1), *lengths), "spread": variance}
        extra = {name: (values.detach() * lengths[1]).sum() for name, values in shown.items()}
        criterion = None if model.training else nll + price.detach().sum().to(nll.dtype)
        return LossParts(total + price.sum().to(total.dtype), tokens, nll, extra, criterion)


MMA = ObjectiveKind(
    "mma",
    "online: a Transformer with monotonic heads (MMA), by expected alignments and delays",
    MMASettings,
    MonotonicLikelihood,
    takes_samples=False,
    takes_two_passes=False,
)
