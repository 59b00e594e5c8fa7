"""Learning where to stop: the compound objective of predicting tokens and exits (section 5.3)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from nmtgrid.adaptive.halting import no_predictor
from nmtgrid.adaptive.losses import Family, exit_loss, predicted_exits
from nmtgrid.adaptive.objectives import aligned_loss, by_exit, not_negative
from nmtgrid.adaptive.oracles import Kernel, OracleScore, sequence_oracle, token_oracle
from nmtgrid.adaptive.weights import Weighting, exit_weights
from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch
from nmtgrid.layers.kernels.linear_loss import linear_nll_and_hits
from nmtgrid.models.api import ExitModel, Sites, TranslationModel, with_exits
from nmtgrid.training.api import LossParts, ObjectiveKind, objectives
from nmtgrid.training.likelihood import SiteTargets, check_smoothing


@dataclasses.dataclass(frozen=True)
class HaltingSettings:
    """Settings of training an exit predictor with its decoder."""

    alpha: float = 1.0
    """Weight of the exit predictor's loss."""
    oracle: OracleScore = "likelihood"
    """What the oracle judges exits by: log-probability, or whether the token would be right."""
    depth_penalty: float = 0.0
    """Lambda, what a block costs the oracle, in nats or right tokens."""
    sigma: float = 0.0
    """Width of the kernel by which a token-specific oracle looks around itself; 0 for none."""
    kernel: Kernel = "plain"
    """Whether that kernel sums, as printed, or takes the mean."""
    weights: Weighting = "uniform"
    """Omega_n, what the exits' losses count, in proportion to 1, n, n^1/2, n^-1/2 or n^-1."""
    validate_threshold: float = 0.5
    """The chance of stopping above which the validated predictor stops, if it is geometric."""
    label_smoothing: float = 0.1
    """Probability mass spread over all types."""

    def faults(self) -> list[str]:
        """Return what is wrong with the values."""
        found = [
            fault
            for name in ("alpha", "depth_penalty", "sigma")
            for fault in not_negative(name, getattr(self, name))
        ]
        if not 0 <= self.validate_threshold <= 1:
            found.append(
                "`objective.validate_threshold` must be from 0 to 1, but is "
                f"{self.validate_threshold}."
            )
        return [*found, *check_smoothing(self.label_smoothing)]


class CompoundLoss:
    """The aligned loss plus alpha times the exit predictor's against an oracle. Eq. (5.9), (5.10).

    The model's `halting` says which family the predictor is of, and with it whether the oracle
    chooses for sentences or tokens; a sentence's loss counts for each of its tokens, as (5.9) has
    it. The oracle judges by the same predictions that are trained, in training mode with their
    dropout, and without gradient.

    `nll` is that along the exits that the predictor takes at `validate_threshold` (the likeliest,
    unless it is geometric), each with the states of aligned exits; `average_exit`, `oracle_exit`
    and `agreement` tell where both stop and how often at the same place. Validation goes by the
    compound loss without label smoothing: along the exits taken, never to exit might be best.
    """

    def __init__(self, settings: HaltingSettings) -> None:
        self.settings = settings

    def check(self, model: TranslationModel) -> None:
        """Raise ConfigError for a model without exits or without an exit predictor."""
        family_of(with_exits(model))
        if model.traits.halting == "sequence" and self.settings.sigma:
            raise ConfigError(
                "`objective.sigma` smooths over a sentence's tokens, but this model's predictor "
                "chooses for whole sentences.",
                "Leave it at 0, or train a model with `--set model.halting=geometric`.",
            )

    def agent(self) -> None:
        """Translations see the whole source."""

    def loss(self, model: TranslationModel, batch: Batch) -> LossParts:
        """Return the compound loss, summed over the target tokens."""
        batch = batch.sharing()  # decoder and predictor read one encoding, with the same dropout
        model, settings = with_exits(model), self.settings
        family = family_of(model)
        sites = Sites.offline(batch)
        targets = SiteTargets.at(batch, sites)
        states = model.exit_features(batch, sites)
        weights = exit_weights(settings.weights, len(states))
        total, sums = aligned_loss(model, states, targets, weights, settings.label_smoothing)
        plain = sum(weight * value for weight, value in zip(weights, sums, strict=True))
        nll, hits = judged(model, states, targets.tokens)
        logits = model.halting_logits(batch, states)
        if family == "sequence":
            logits = logits[sites.sentence]
        wanted = self._oracle(family, batch, sites, -nll if self._by_likelihood else hits)
        halting = exit_loss(logits, wanted, family).sum()
        taken = predicted_exits(logits.detach(), family, settings.validate_threshold)
        extra = {
            "exit_loss": halting.detach(),
            "average_exit": taken.sum(),
            "oracle_exit": wanted.sum(),
            "agreement": (taken == wanted).sum(),
            **by_exit(sums),
        }
        along = nll.gather(1, taken[:, None] - 1).sum()
        tokens = int(batch.target_lengths.sum())
        criterion = plain + settings.alpha * halting.detach()
        return LossParts(total + settings.alpha * halting, tokens, along, extra, criterion)

    @property
    def _by_likelihood(self) -> bool:
        return self.settings.oracle == "likelihood"

    def _oracle(self, family: Family, batch: Batch, sites: Sites, values: Tensor) -> Tensor:
        """Return the oracle's exit at each site [M], for the exits' scores [M, N] there."""
        settings, lengths = self.settings, batch.target_lengths
        places = sites.sentence, sites.position
        scores = values.new_zeros(*batch.target_output.shape, values.shape[1])
        scores[places] = values
        if family == "sequence":
            return sequence_oracle(scores, lengths, settings.depth_penalty)[sites.sentence]
        kernel = settings.sigma, settings.kernel
        return token_oracle(scores, lengths, settings.depth_penalty, *kernel)[places]


def judged(model: ExitModel, states: list[Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return what an oracle may judge by, [M, N] each, float32 at least, without gradient.

    First -log p of the targets [M] at each exit, then 1 where it predicts them, else 0.
    """
    found = []
    for exit, state in enumerate(states, 1):
        held = model.classifier(exit)
        found.append(linear_nll_and_hits(state, held.weight, held.bias, targets))
    nll = torch.stack([values for values, _ in found], 1)
    return nll, torch.stack([hits for _, hits in found], 1).to(nll.dtype)


def family_of(model: ExitModel) -> Family:
    """Return the family of a model's exit predictor. Raises ConfigError where it has none."""
    if model.traits.halting == "none":
        raise no_predictor(model, "geometric")
    return model.traits.halting


objectives.add(
    "exits-halting",
    ObjectiveKind(
        "exits-halting",
        "early exits: a decoder with an exit predictor, which learns where to stop from an oracle",
        HaltingSettings,
        CompoundLoss,
        takes_samples=False,
    ),
)
