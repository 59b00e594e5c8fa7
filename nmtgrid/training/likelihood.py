"""Maximum likelihood, and the parts that all translation objectives are built from.

A loss is a sum over sites of weight x cross-entropy(target distribution, prediction). An objective
defines the sites, their weights and the smoothing of their targets. The objectives of online/,
adaptive/ and smoothing/ are built from these parts.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from nmtgrid.base import console
from nmtgrid.data.batches import Batch
from nmtgrid.layers.kernels.linear_loss import Teacher, linear_cross_entropy
from nmtgrid.layers.soft_targets import SoftTargets
from nmtgrid.models.api import Classifier, PredictionSites, TranslationModel, check_features
from nmtgrid.training.api import BaseObjective, LossParts, ObjectiveKind
from nmtgrid.training.settings import SmoothedSettings


@dataclasses.dataclass(frozen=True)
class SiteTargets:
    """Targets of the predictions at M sites.

    tokens [M] are those of the references; soft targets [M, C] are set if these are not the only
    targets; weights [M] are those of the sites' sentences (None: ones). With `r_drop` (alpha) each
    site has two predictions, those of `both_passes`.
    """

    tokens: Tensor
    weights: Tensor | None = None
    soft_targets: SoftTargets | None = None
    r_drop: float | None = None

    @classmethod
    def at(cls, batch: Batch, sites: PredictionSites) -> SiteTargets:
        """Return the targets of the sites of a batch."""
        cells = sites.sentence, sites.position
        return cls(
            batch.target_output[cells],
            None if batch.weights is None else batch.weights[sites.sentence],
            None if batch.soft_targets is None else batch.soft_targets[cells],
            batch.r_drop,
        )

    def __getitem__(self, sites: Tensor) -> SiteTargets:
        """Return the targets of some of the sites."""
        return SiteTargets(
            self.tokens[sites],
            None if self.weights is None else self.weights[sites],
            None if self.soft_targets is None else self.soft_targets[sites],
            self.r_drop,
        )

    def cross_entropy(
        self,
        features: Tensor,
        classifier: Classifier,
        weights: Tensor | None = None,
        label_smoothing: float = 0.0,
        teacher: Teacher | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the sums (loss, negative log-likelihood) for features [M, D] at the sites.

        With R-Drop features are [2M, D], see `linear_cross_entropy`. `weights` [M] are those of the
        sites (None: ones), in addition to those of their sentences.
        """
        if self.weights is not None:
            weights = self.weights if weights is None else weights * self.weights
        return linear_cross_entropy(
            features, classifier.weight, classifier.bias, self.tokens, weights,
            label_smoothing=label_smoothing, soft_targets=self.soft_targets, r_drop=self.r_drop,
            teacher=teacher,
        )  # fmt: skip


def both_passes(batch: Batch, sites: PredictionSites) -> tuple[Batch, PredictionSites]:
    """Return the batch and sites that a model computes: with R-Drop twice all sentences and sites.

    Both passes are thus one batch, [2B] sentences and [2M] sites, in which every sentence samples
    its own dropout; the second pass comes after the first.
    """
    if batch.r_drop is None:
        return batch, sites

    def twice(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.repeat(2)

    sentence = torch.cat([sites.sentence, sites.sentence + len(batch)])
    doubled = dataclasses.replace(
        sites, sentence=sentence, position=sites.position.repeat(2), reads=twice(sites.reads),
        depth=twice(sites.depth),
    )  # fmt: skip
    return batch.twice(), doubled


def site_loss(
    model: TranslationModel,
    batch: Batch,
    sites: PredictionSites,
    weights: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> LossParts:
    """Return the cross-entropy at `sites`, weighted by `weights` [M] (None: ones).

    `tokens` is the number of target tokens of the batch, whatever the number of sites.
    """
    # Read before launching work that a GPU would have to finish first.
    tokens = batch.token_count
    passes = both_passes(batch, sites)
    features = model.features(*passes)
    classifier = model.classifier()
    check_features(model, features, len(passes[1]), classifier.weight.shape[1])
    if not torch.is_grad_enabled():
        # Detached, so that the fused loss computes no gradients in its forward pass.
        classifier = classifier.detached()
    # Fused: logits [M, V] are never stored as a whole (`benchmarks/kernels.py` times it).
    targets = SiteTargets.at(batch, sites)
    total, nll = targets.cross_entropy(features, classifier, weights, label_smoothing)
    return LossParts(total, tokens, nll)


@dataclasses.dataclass(frozen=True)
class LikelihoodSettings(SmoothedSettings):
    """Settings of maximum likelihood."""


class Likelihood(BaseObjective[LikelihoodSettings]):
    """Maximum likelihood: one prediction for each target token, with the whole source."""

    def check(self, model: TranslationModel) -> None:
        """Warn of parts that early exit needs but this objective does not train."""
        untrained = []
        if getattr(getattr(model, "config", None), "exits", "none") == "separate":
            untrained.append("the classifiers of all exits but the last (`model.exits=separate`)")
        if model.traits.halting != "none":
            untrained.append(f"the exit predictor (`model.halting={model.traits.halting}`)")
        if untrained:
            console.warn(
                f"The objective `likelihood` does not train {' and '.join(untrained)}: train with "
                "`--objective exits-aligned`, or `exits-halting` for a predictor, to decode with "
                "early exits."
            )

    def loss(self, model: TranslationModel, batch: Batch) -> LossParts:
        sites = PredictionSites.offline(batch)
        return site_loss(model, batch, sites, label_smoothing=self.settings.label_smoothing)


LIKELIHOOD = ObjectiveKind(
    "likelihood",
    "maximum likelihood of each target token, with label smoothing",
    LikelihoodSettings,
    Likelihood,
)
