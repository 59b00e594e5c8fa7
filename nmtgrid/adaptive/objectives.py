"""Objectives of decoders that predict after each block: aligned and mixed training (section 5.2).

Aligned training (5.4) sums the losses of all exits on states of the same depth, weighted in one of
five ways (`exit_weights`, table 5.4), or with scaled gradients (algorithm 2). Mixed training (5.6)
samples an exit for each token.
"""

from __future__ import annotations

import abc
import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeVar

import torch
from torch import Tensor

from nmtgrid.base.config import ABOVE_0, BELOW_1, FROM_0, FROM_1
from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch
from nmtgrid.layers.kernels.linear_loss import Teacher
from nmtgrid.models.api import Classifier, ExitModel, PredictionSites, TranslationModel, with_exits
from nmtgrid.search.paths import sample_k, wait_k
from nmtgrid.training.api import BaseObjective, LossParts, ObjectiveKind
from nmtgrid.training.likelihood import SiteTargets, both_passes, site_loss
from nmtgrid.training.settings import SmoothedSettings

Weighting = Literal["uniform", "linear", "root", "inverse-root", "inverse"]
"""Weights of the exits' losses, in proportion to 1, n, n^1/2, n^-1/2 and n^-1."""

_POWERS: dict[Weighting, float] = {
    "uniform": 0.0, "linear": 1.0, "root": 0.5, "inverse-root": -0.5, "inverse": -1.0,
}  # fmt: skip


def exit_weights(weighting: Weighting, count: int) -> list[float]:
    """Return omega_1 .. omega_N for `count` exits, which sum to 1 (section 5.2.4)."""
    powers = [n ** _POWERS[weighting] for n in range(1, count + 1)]
    return [power / sum(powers) for power in powers]


def rotated(weights: Sequence[float], rotation: int, update: int) -> list[float]:
    """Return the weights of an update that trains `rotation` of the earlier exits, in turn.

    Averaged over as many updates as there are earlier exits, they equal `weights`.
    """
    earlier = len(weights) - 1
    trained = {(update * rotation + offset) % earlier for offset in range(rotation)}
    scaled = [weight * earlier / rotation for weight in weights[:-1]]
    return [w if n in trained else 0.0 for n, w in enumerate(scaled)] + [weights[-1]]


def gradient_scales(ratio: float, count: int) -> list[float]:
    """Return gamma_1 .. gamma_N, gamma_n = ratio (N - n), for `count` exits (section 5.2.4).

    With uniform weights the ratio between the gradient of block n's own loss and the sum of the
    gradients of the N - n later losses is then `ratio`, if all gradients have the same size.

    Departs: As printed, gamma_N is 0, so the last block would not be trained. Here gamma_N is 1.
    """
    return [ratio * (count - n) for n in range(1, count)] + [1.0]


_SEED, _SEED_OF_PATHS = 5_106_107, 5_106_108


Reads = Literal["whole", "sampled"]
"""The source that predictions see."""


@dataclasses.dataclass(frozen=True)
class ExitSettings(SmoothedSettings):
    """The setting shared by all objectives of exits."""

    reads: Reads = dataclasses.field(default="whole", kw_only=True)
    """The source that each prediction sees: the whole, or, for simultaneous translation, what has
    been read along a wait-k path, with k drawn for each sentence (4.30)."""


@dataclasses.dataclass(frozen=True)
class AllExitsSettings(ExitSettings):
    """Settings shared by aligned and mixed training."""

    distillation: Annotated[float, FROM_0] = dataclasses.field(default=0.0, kw_only=True)
    """Distillation: weight of KL(last || earlier), by which earlier exits learn from the last
    exit's predictions. Its gradient does not reach the last exit. With `exits-mixed` these are the
    predictions without early exits, one more pass without gradients."""
    exits_from: Annotated[float, BELOW_1] = dataclasses.field(default=0.0, kw_only=True)
    """Share of the run in which only the last exit is trained, at the cost of a decoder without
    exits. It is a share of the limit (updates, minutes or epochs) that will be reached first."""


@dataclasses.dataclass(frozen=True)
class AlignedSettings(AllExitsSettings):
    """Settings of aligned training."""

    only_with = types.MappingProxyType({"gradient_form": ("gradient_ratio", ABOVE_0)})

    weights: Weighting = "uniform"
    """Omega_n, weights of the exits' losses, in proportion to 1, n, n^1/2, n^-1/2 or n^-1."""
    gradient_ratio: Annotated[float, FROM_0] = 0.0
    """Gamma, ratio between the gradient of a block's own exit and the sum of the gradients of all
    later exits. 0: gradients are not scaled."""
    gradient_form: Literal["exact", "printed"] = "exact"
    """How gradients are scaled. `printed` is algorithm 2 of the thesis, which does not change the
    ratio; for an ablation."""
    rotation: Annotated[int, FROM_0] = 0
    """Number of earlier exits that each update trains in addition to the last one, in turn, with
    weights that compensate for the updates without them. A small number makes updates faster. 0:
    all."""


_Settings = TypeVar("_Settings", bound=AllExitsSettings)


def exit_sites(model: TranslationModel, batch: Batch, reads: Reads) -> PredictionSites:
    """Return a site for each target position, with the whole source or along sampled paths.

    In validation the same paths are sampled each time.
    """
    if reads == "whole":
        return PredictionSites.offline(batch)
    generator = None if model.training else torch.Generator().manual_seed(_SEED_OF_PATHS)
    k = sample_k(batch.source_lengths, generator=generator)
    paths = wait_k(k, batch.source_lengths, batch.target_input.shape[1])
    return PredictionSites.along(batch, paths)


def check_sampled_reads(model: TranslationModel, reads: Reads) -> None:
    """Raise ConfigError if `reads` is sampled and the model does not support limited reads."""
    if reads == "sampled":
        model.check_prefixes()


class _AllExits(BaseObjective[_Settings], abc.ABC):
    """Base of both objectives: the first part of the run, which trains only the last exit."""

    def loss(self, model: TranslationModel, batch: Batch) -> LossParts:
        settings = self.settings
        if batch.fraction_done is None or batch.fraction_done >= settings.exits_from:
            return self.loss_of_exits(with_exits(model), batch)
        sites = exit_sites(model, batch, settings.reads)
        return site_loss(model, batch, sites, label_smoothing=settings.label_smoothing)

    @abc.abstractmethod
    def loss_of_exits(self, model: ExitModel, batch: Batch) -> LossParts:
        """Return the loss that trains all exits, as in validation."""

    def check(self, model: TranslationModel) -> None:
        check_sampled_reads(model, self.settings.reads)
        halting = with_exits(model).traits.halting
        if halting != "none":
            raise ConfigError(
                f"The model has an exit predictor (`model.halting={halting}`), which this "
                "objective would not train.",
                "Train with `--set model.halting=none`, or use `--objective exits-halting`, which "
                "trains the predictor too.",
            )


class Aligned(_AllExits[AlignedSettings]):
    """The weighted mean of all exits' likelihoods. Eq. (5.4), (5.5).

    With `distillation` earlier exits also learn from the predictions of the last exit, which gets
    no gradient from this term. `nll` is that of the last exit; `nll_exit_1` .. `nll_exit_N` are
    logged for each exit. With `exits_from` only the last exit is trained first, and the best
    weights are chosen by the weighted mean of all exits' likelihoods: by that of the last exit,
    weights could be chosen whose other exits have not been trained.

    `rotation` trains R of the N - 1 earlier exits in each update, the next ones in the next (the
    rotation of LayerSkip, Elhoushi et al., 2024), with (N - 1) / R times their weight: the same
    loss on average over N - 1 updates. An update then computes the likelihoods of only R earlier
    exits, so that training logs only that of the last exit; validation logs all of them.

    Departs: Algorithm 2 scales both losses of a block alike, so their ratio does not change. Here
    only the gradient of block n's own loss is multiplied by gamma_n: (gamma_n - 1) times this
    gradient is added, with all other blocks held fixed. Gradients change, the logged loss does not.
    """

    def check(self, model: TranslationModel) -> None:
        super().check(model)
        earlier = with_exits(model).traits.num_exits - 1
        if self.settings.rotation > earlier:
            raise ConfigError(
                f"`objective.rotation={self.settings.rotation}` trains more exits in each update "
                f"than the model has before its last one ({earlier}).",
                "Set it to 0, which trains all of them, or to a smaller number.",
            )

    def loss_of_exits(self, model: ExitModel, batch: Batch) -> LossParts:
        settings, count = self.settings, model.traits.num_exits
        sites = exit_sites(model, batch, settings.reads)
        passes = both_passes(batch, sites)
        scales = gradient_scales(settings.gradient_ratio, count)
        # Without gradients (validation) there is nothing to scale: one plain pass.
        if not settings.gradient_ratio or not torch.is_grad_enabled():
            states = model.exit_features(*passes)
        elif settings.gradient_form == "printed":
            states = model.exit_features(*passes, scales=scales)
        else:
            states = model.exit_features(*passes, own=True)
        targets = SiteTargets.at(batch, sites)
        weights = exit_weights(settings.weights, count)
        if settings.rotation and batch.update is not None:
            weights = rotated(weights, settings.rotation, batch.update)
        smoothing = settings.label_smoothing
        total, sums = aligned_loss(
            model, states[:count], targets, weights, smoothing, settings.distillation
        )
        # "exact": each block's own exit already counts once in `total`, so gamma_n - 1 is added.
        if len(states) > count:
            shares = [w * (scale - 1) for w, scale in zip(weights, scales, strict=True)]
            total = total + own_gradients(model, states[count:], targets, shares, smoothing)
        criterion = None
        if settings.exits_from and batch.update is None:
            criterion = weighted(weights, sums)
        return LossParts(total, batch.token_count, sums[count], by_exit(sums), criterion)


@dataclasses.dataclass(frozen=True)
class MixedSettings(AllExitsSettings):
    """Settings of mixed training."""

    sequences: Annotated[int, FROM_1] = 1
    """M, sequences of exits sampled for each sentence in each update."""


class Mixed(_AllExits[MixedSettings]):
    """The mean of the likelihoods along M sequences of exits, sampled uniformly. Eq. (5.6), (5.7).

    All sequences go through the model at once, as rows of one batch that share the encoded source.
    In validation the same exits are sampled each time. With `distillation`, earlier exits also
    learn from the predictions of the full stack, for which no token exits early. With `exits_from`
    no token exits early in the first part of the training.

    Departs: The printed indices of exits and steps are inconsistent. Here n_t is the exit that
    predicts y_t.
    """

    def loss_of_exits(self, model: ExitModel, batch: Batch) -> LossParts:
        settings, count = self.settings, self.settings.sequences
        # M sequences of a sentence are M rows, which share one encoding.
        several, _ = batch.repeated(count)
        all_sites = exit_sites(model, several, settings.reads)
        generator = None if model.training else torch.Generator().manual_seed(_SEED)
        depth = draw_exits(all_sites.position, model.traits.num_exits, generator)
        sites = dataclasses.replace(all_sites, depth=depth, mixed=True)
        features = model.features(*both_passes(several, sites))
        passes = features.unflatten(0, (-1, len(sites)))
        full_stack = self._full_stack(model, several, all_sites) if settings.distillation else None
        targets = SiteTargets.at(several, sites)
        # Exit by exit, because each may have its own classifier; the sizes take one
        # synchronisation.
        exits = range(1, model.traits.num_exits + 1)
        sizes = torch.stack([(depth == exit).sum() for exit in exits]).tolist()
        split = depth.argsort(stable=True).split(sizes)
        total = nll = torch.zeros((), device=features.device)
        for exit, rows_of_exit in zip(exits, split, strict=True):
            features_of_exit = passes[:, rows_of_exit].flatten(0, 1)
            teacher = None
            if full_stack is not None and exit < len(exits):
                taught = full_stack.features.unflatten(0, (-1, len(sites)))[:, rows_of_exit]
                teacher = dataclasses.replace(full_stack, features=taught.flatten(0, 1))
            loss, likelihood = targets[rows_of_exit].cross_entropy(
                features_of_exit, classifier_of(model, exit),
                label_smoothing=settings.label_smoothing, teacher=teacher,
            )  # fmt: skip
            total, nll = total + loss / count, nll + likelihood / count
        exits_of_rows = depth if targets.weights is None else depth * targets.weights
        average_exit = exits_of_rows.sum() / count
        return LossParts(total, batch.token_count, nll, {"average_exit": average_exit})

    @torch.no_grad()
    def _full_stack(self, model: ExitModel, batch: Batch, sites: PredictionSites) -> Teacher:
        """Return the last exit's predictions at all sites, for tokens that all exit there."""
        features = model.features(*both_passes(batch, sites))
        last = model.classifier().detached()
        return Teacher(features, last.weight, last.bias, self.settings.distillation)


def aligned_loss(
    model: ExitModel,
    states: Sequence[Tensor],
    targets: SiteTargets,
    weights: Sequence[float],
    label_smoothing: float,
    distillation: float = 0.0,
) -> tuple[Tensor, dict[int, Tensor]]:
    """Return the weighted sum of the exits' losses, and each one's negative log-likelihood.

    states are N tensors [M, D], of exits 1 to N; `distillation` is the weight of the last exit's
    prediction as a target of the others. Exits without weight are skipped.
    """
    total, sums = torch.zeros((), device=targets.tokens.device), {}
    teacher = None
    if distillation:
        last = model.classifier(len(states)).detached()
        teacher = Teacher(states[-1].detach(), last.weight, last.bias, distillation)
    for exit, (state, weight) in enumerate(zip(states, weights, strict=True), 1):
        if not weight:
            continue
        classifier = classifier_of(model, exit)
        loss, likelihood = targets.cross_entropy(
            state, classifier, label_smoothing=label_smoothing,
            teacher=teacher if exit < len(states) else None,
        )  # fmt: skip
        total = total + weight * loss
        sums[exit] = likelihood
    return total, sums


def own_gradients(
    model: ExitModel,
    states: Sequence[Tensor],
    targets: SiteTargets,
    shares: Sequence[float],
    label_smoothing: float,
) -> Tensor:
    """Return zero, whose gradient is that of the weighted sum of exits' losses, classifiers fixed.

    states are N tensors [M, D], each of which depends only on the parameters of its own block.
    """
    total = torch.zeros((), device=targets.tokens.device)
    for exit, (state, share) in enumerate(zip(states, shares, strict=True), 1):
        if share:
            # The classifiers' gradients come only from the aligned loss.
            classifier = model.classifier(exit).detached()
            loss, _ = targets.cross_entropy(state, classifier, label_smoothing=label_smoothing)
            total = total + share * loss
    # The value cancels, so the logged loss is the aligned one; the gradient stays.
    return total - total.detach()


def weighted(weights: Sequence[float], sums: Mapping[int, Tensor]) -> Tensor:
    """Return the weighted mean of the exits' negative log-likelihoods."""
    first, *others = (weight * value for weight, value in zip(weights, sums.values(), strict=True))
    return sum(others, start=first)


def by_exit(sums: Mapping[int, Tensor]) -> dict[str, Tensor]:
    """Return the log entries of the exits' negative log-likelihoods."""
    return {f"nll_exit_{exit}": value for exit, value in sums.items()}


def classifier_of(model: ExitModel, exit: int) -> Classifier:
    """Return the classifier of an exit, without gradient in validation."""
    # The fused loss computes the weights' gradient in its forward pass if they require one.
    classifier = model.classifier(exit)
    return classifier if torch.is_grad_enabled() else classifier.detached()


def draw_exits(like: Tensor, num_exits: int, generator: torch.Generator | None) -> Tensor:
    """Return exits of the shape of `like`, drawn uniformly from [1..N]."""
    # On the generator's device, so that validation draws the same exits everywhere.
    device = like.device if generator is None else generator.device
    exits = torch.randint(1, num_exits + 1, like.shape, generator=generator, device=device)
    return exits.to(like.device)


EXITS_ALIGNED = ObjectiveKind(
    "exits-aligned",
    "early exits: the likelihood at every exit, with the same exit for all tokens",
    AlignedSettings,
    Aligned,
)
EXITS_MIXED = ObjectiveKind(
    "exits-mixed",
    "early exits: the likelihood along exits sampled for each token",
    MixedSettings,
    Mixed,
)
