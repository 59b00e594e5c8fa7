"""The objective `wait-info`: likelihood with the source K ahead in information.

The information of layers/transformer/information.py is trained through the attention that it
weights, and by a loss on its sums, which defines its unit: the source and the target of a sentence
have the same total information, 1 per token on average.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import torch
from torch import Tensor

from nmtgrid.base.config import ABOVE_0, FROM_0
from nmtgrid.base.rows import is_token
from nmtgrid.data.batches import Batch
from nmtgrid.layers.transformer.information import sum_penalty
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.online.objectives.dynamic import read_share
from nmtgrid.online.policies import WaitInfo
from nmtgrid.search.paths import sample_k
from nmtgrid.training.api import BaseObjective, LossParts, ObjectiveKind
from nmtgrid.training.likelihood import SiteTargets
from nmtgrid.training.settings import SmoothedSettings


@dataclasses.dataclass(frozen=True)
class WaitInfoSettings(SmoothedSettings):
    """Settings of training a Wait-info model."""

    whole_source_updates: Annotated[int, FROM_0] = 4000
    """Number of initial updates with the whole source, before sampled values of K limit it."""
    sum_weight: Annotated[float, FROM_0] = 0.3
    """Weight of the loss on the sums of information of both sides, which should equal the mean of
    both lengths."""
    validate_k: Annotated[float, ABOVE_0] = 3
    """K in validation, for translations and for the loss."""


class InformationLikelihood(BaseObjective[WaitInfoSettings]):
    """Likelihood with the source limited by a sampled K, plus a loss on sums of information.

    A target token sees the source tokens that it needs to have K more information than the target
    tokens before it, with K sampled from [1..|x|] (Zhang, Guo and Feng, 2022, "Wait-info Policy").
    The loss brings the sums of information of both sides to the mean of both lengths, without end
    symbols. In validation K is `validate_k`, and the best weights are chosen by the sum of
    likelihood and this loss.

    Departs: In the authors' code (github.com/ictnlp/Wait-info) all sentences of a batch share one
    K, sampled up to the longest length; the target's information includes the begin symbol instead
    of the last token; and a token sees at least one source token more than with wait-1. Here each
    sentence has its own K, and information counts real tokens only.
    """

    def check(self, model: TranslationModel) -> None:
        if model.traits.readiness != "information":
            raise model.no_mechanism("information")

    def agent(self) -> WaitInfo:
        return WaitInfo(self.settings.validate_k)

    def loss(self, model: TranslationModel, batch: Batch) -> LossParts:
        settings, lengths = self.settings, (batch.source_lengths, batch.target_lengths)
        tokens = batch.token_count
        k: float | Tensor | None = settings.validate_k
        if model.training:
            # Sampled with the global generator, whose state is saved in checkpoints.
            is_limited = (batch.update or 0) >= settings.whole_source_updates
            k = sample_k(lengths[0]) if is_limited else None
        features, source, target, paths = model.features_with_information(batch, k)
        total, nll = SiteTargets.at(batch, PredictionSites.offline(batch)).cross_entropy(
            features, model.classifier(), label_smoothing=settings.label_smoothing
        )
        # Without the end symbols; the target's begin symbol has no information.
        needed = (lengths[0] + lengths[1] - 2) / 2
        is_word = is_token(lengths[0] - 1, source.shape[1])
        penalties = torch.stack([
            sum_penalty(source, is_word, needed).sum(),
            sum_penalty(target, batch.is_target, needed).sum(),
        ])  # fmt: skip
        price = settings.sum_weight * penalties.sum()
        extra = {
            "source_sum_loss": penalties[0].detach(),
            "target_sum_loss": penalties[1].detach(),
            "reads": read_share(paths, batch),
        }
        criterion = None if model.training else nll + price.detach().to(nll.dtype)
        return LossParts(total + price.to(total.dtype), tokens, nll, extra, criterion)


WAIT_INFO = ObjectiveKind(
    "wait-info",
    "online: a Transformer with information per token; the source is ahead by a sampled K",
    WaitInfoSettings,
    InformationLikelihood,
    takes_samples=False,
    takes_two_passes=False,
)
