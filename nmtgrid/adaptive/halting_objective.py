"""The compound objective of predicting tokens and exits (section 5.3).

A decoder with exits learns to translate (the aligned loss) and when to exit: oracles compute the
exit that a token or a sentence should take, Eq. (5.12)-(5.28), and an exit predictor is trained on
their choice, Eq. (5.9), (5.10).
"""

from __future__ import annotations

import dataclasses
import types
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from nmtgrid.adaptive.halting import no_predictor
from nmtgrid.adaptive.objectives import (
    ExitSettings,
    Weighting,
    aligned_loss,
    by_exit,
    check_sampled_reads,
    exit_sites,
    exit_weights,
    weighted,
)
from nmtgrid.base.config import ABOVE_0, FROM_0, SHARE
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.rows import is_token
from nmtgrid.data.batches import Batch
from nmtgrid.layers.kernels.linear_loss import linear_nll
from nmtgrid.models.api import ExitModel, PredictionSites, TranslationModel, with_exits
from nmtgrid.training.api import BaseObjective, LossParts, ObjectiveKind
from nmtgrid.training.likelihood import SiteTargets

OracleScore = Literal["likelihood", "correctness"]
"""The score by which an oracle compares exits."""
Kernel = Literal["plain", "normalised"]
"""Smoothing over a sentence's tokens: weights as printed, or made to sum to 1."""

_TIE = 1e-9
"""Scores that differ by less than this are equal: it is the rounding error of reordered sums."""


def sequence_oracle(scores: Tensor, lengths: Tensor, depth_penalty: float) -> Tensor:
    """Return [B] (int64): the exit of each sentence, for scores [B, T, N] of `lengths` [B] tokens.

    Eq. (5.12), (5.15), (5.16), (5.17). `depth_penalty` is lambda, the cost of a block. Of equal
    exits the earliest is taken.

    Departs: Eq. (5.15) is printed with arg min. Scores are better when higher, so this takes the
    arg max.
    """
    return _best_exit(_without_padding(scores, lengths).sum(1), depth_penalty)


def token_oracle(
    scores: Tensor,
    lengths: Tensor,
    depth_penalty: float,
    sigma: float = 0.0,
    kernel: Kernel = "plain",
) -> Tensor:
    """Return [B, T] (int64): the exit of each token, for scores [B, T, N]; padding is undefined.

    Eq. (5.23), (5.25), (5.28): the exit n with the best smoothed score - lambda n, where lambda is
    `depth_penalty`; of equal exits the earliest. `sigma` and `kernel` as in `smoothed`.

    Departs: Eq. (5.25) is printed with arg min. Scores are better when higher, so this takes the
    arg max.
    """
    return _best_exit(smoothed(scores, lengths, sigma, kernel), depth_penalty)


def smoothed(scores: Tensor, lengths: Tensor, sigma: float, kernel: Kernel = "plain") -> Tensor:
    """Return scores [B, T, N] (float64), smoothed over the tokens of each sentence.

    The score of token t' is added to that of token t with the weight exp(-(t - t')^2 / sigma),
    Eq. (5.24); with sigma 0 the scores stay as they are. "plain" sums, so with a wide kernel the
    scores grow with the length of the sentence while lambda does not; "normalised" averages.
    Padding is excluded.

    Departs: Eq. (5.27) is printed with the score of t in a sum over t'. This sums the scores of t'.
    """
    real_scores = _without_padding(scores, lengths)
    if sigma == 0:
        return real_scores
    # The kernel [T, T] depends on distances alone: one product smooths a whole batch.
    positions = torch.arange(scores.shape[1], device=scores.device, dtype=torch.float64)
    weights = torch.exp(-((positions[:, None] - positions) ** 2) / sigma)
    summed = weights @ real_scores
    if kernel == "plain":
        return summed
    # Divided by the weights of a sentence's own tokens only; far into padding they all underflow.
    totals = is_token(lengths, scores.shape[1]).to(weights.dtype) @ weights
    return summed / totals[..., None].clamp(min=torch.finfo(weights.dtype).tiny)


def _without_padding(scores: Tensor, lengths: Tensor) -> Tensor:
    """Return the scores as float64, 0 on padding, whatever its values."""
    # Filled, not multiplied: infinity on padding times 0 would be NaN. In float64, because sums
    # over a long sentence decide between exits of nearly equal scores.
    is_real = is_token(lengths, scores.shape[1])
    return scores.double().masked_fill(~is_real[..., None], 0.0)


def _best_exit(scores: Tensor, depth_penalty: float) -> Tensor:
    """Return the exit, from 1, of the best score - lambda n along the last axis; earliest first."""
    exits = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    values = scores - depth_penalty * exits
    # `argmax` of a boolean's integers is the first maximum, so the earliest of equal exits.
    is_best = values >= values.amax(-1, keepdim=True) - _TIE
    return is_best.to(torch.int8).argmax(-1) + 1


Family = Literal["sequence", "multinomial", "geometric"]
"""Families of distributions over exits."""


def exit_log_probabilities(logits: Tensor, family: Family) -> Tensor:
    """Return log q(n) [..., N] of each exit, in float32 at least.

    The geometric family is Eq. (5.21): q(n) is chi_n times the product of 1 - chi_n' over all exits
    n' before n, and exit N gets the remaining probability.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if family != "geometric":
        return logits.log_softmax(-1)
    # log chi_n + sum of log(1 - chi_n') over the blocks before; block N stops whatever chi is.
    gone_on = pad(logsigmoid(-logits).cumsum(-1), (1, 0))
    return gone_on + pad(logsigmoid(logits), (0, 1))


def exit_loss(logits: Tensor, exits: Tensor, family: Family) -> Tensor:
    """Return H(q*, q) [...] in nats, q* being all on the oracle's `exits` [...]. Eq. (5.9)."""
    return -exit_log_probabilities(logits, family).gather(-1, exits[..., None] - 1)[..., 0]


def predicted_exits(logits: Tensor, family: Family, threshold: float = 0.5) -> Tensor:
    """Return the exits [...] taken: the most likely ones, or the first chi above `threshold`."""
    if family != "geometric":
        return logits.argmax(-1) + 1
    # In float32, as `halting.Thresholds` compares in decoding.
    stops = pad(logits.float().sigmoid() > threshold, (0, 1), value=True)
    return stops.to(torch.int8).argmax(-1) + 1


@dataclasses.dataclass(frozen=True)
class HaltingSettings(ExitSettings):
    """Settings of training an exit predictor with its decoder."""

    only_with = types.MappingProxyType(
        {"kernel": ("sigma", ABOVE_0), "validate_threshold": ("model.halting", ("geometric",))}
    )

    alpha: Annotated[float, FROM_0] = 1.0
    """Weight of the exit predictor's loss."""
    oracle: OracleScore = "likelihood"
    """Score by which the oracle compares exits: log-probability, or whether the token is predicted
    correctly."""
    depth_penalty: Annotated[float, FROM_0] = 0.0
    """Lambda, the oracle's cost per block, in nats (`likelihood`) or correct tokens
    (`correctness`)."""
    sigma: Annotated[float, FROM_0] = 0.0
    """Width of the kernel that smooths the scores of a token-specific oracle over neighbouring
    tokens; 0: no smoothing."""
    kernel: Kernel = "plain"
    """Whether the kernel sums, as printed, or averages."""
    weights: Weighting = "uniform"
    """Omega_n, weights of the exits' losses, in proportion to 1, n, n^1/2, n^-1/2 or n^-1."""
    validate_threshold: Annotated[float, SHARE] = 0.5
    """With `halting=geometric`: probability of exiting above which a token exits in validation."""


class CompoundLoss(BaseObjective[HaltingSettings]):
    """The aligned loss plus alpha times the exit predictor's against an oracle. Eq. (5.9), (5.10).

    The model's `halting` defines the type of predictor, and whether the oracle chooses exits for
    sentences or for tokens; the loss of a sentence counts for each of its tokens, as in (5.9). The
    oracle uses the predictions that are being trained, with their dropout in training, and without
    gradient.

    `nll` is that along the exits that the predictor takes at `validate_threshold` (the most likely
    ones, unless it is geometric), each with the states of aligned exits. `average_exit`,
    `oracle_exit` and `agreement` log the mean exits of both and how often they agree. The best
    weights are chosen by the compound loss without label smoothing: by `nll`, a predictor that
    never exits might be best.
    """

    def check(self, model: TranslationModel) -> None:
        family_of(with_exits(model))
        check_sampled_reads(model, self.settings.reads)
        if model.traits.halting == "sequence" and self.settings.reads != "whole":
            raise ConfigError(
                "This model's predictor chooses exits for whole sentences from the whole source, "
                "which `objective.reads=sampled` does not show.",
                "Leave it at `whole`, or train a model with `--set model.halting=geometric`.",
            )
        if model.traits.halting == "sequence" and self.settings.sigma:
            raise ConfigError(
                "`objective.sigma` smooths over a sentence's tokens, but this model's predictor "
                "chooses for whole sentences.",
                "Leave it at 0, or train a model with `--set model.halting=geometric`.",
            )

    def loss(self, model: TranslationModel, batch: Batch) -> LossParts:
        # Decoder and predictor read one encoding, with the same dropout.
        batch = batch.with_shared_source()
        model, settings = with_exits(model), self.settings
        family = family_of(model)
        sites = exit_sites(model, batch, settings.reads)
        targets = SiteTargets.at(batch, sites)
        states = model.exit_features(batch, sites)
        weights = exit_weights(settings.weights, len(states))
        total, sums = aligned_loss(model, states, targets, weights, settings.label_smoothing)
        nll, hits = exit_scores(model, states, targets.tokens)
        logits = model.halting_logits(batch, states)
        # One prediction for a sentence counts at each of its tokens, as in the sum of (5.9).
        if family == "sequence":
            logits = logits[sites.sentence]
        scores = -nll if settings.oracle == "likelihood" else hits
        oracle_exits = self._oracle(family, batch, sites, scores)
        halting = exit_loss(logits, oracle_exits, family).sum()
        exits = predicted_exits(logits.detach(), family, settings.validate_threshold)
        extra = {
            "exit_loss": halting.detach(),
            "average_exit": exits.sum(),
            "oracle_exit": oracle_exits.sum(),
            "agreement": (exits == oracle_exits).sum(),
            **by_exit(sums),
        }
        nll_of_exits = nll.gather(1, exits[:, None] - 1).sum()
        tokens = batch.token_count
        # Validation minimises the compound loss: the likelihood along the exits taken is best for
        # a predictor that never exits.
        criterion = None
        if not model.training:
            criterion = weighted(weights, sums) + settings.alpha * halting.detach()
        return LossParts(total + settings.alpha * halting, tokens, nll_of_exits, extra, criterion)

    def _oracle(
        self, family: Family, batch: Batch, sites: PredictionSites, values: Tensor
    ) -> Tensor:
        """Return the oracle's exit at each site [M], for the exits' scores [M, N] there."""
        settings, lengths = self.settings, batch.target_lengths
        # Sites are a flat list; the oracles read sentences [B, T, N].
        cells = sites.sentence, sites.position
        scores = values.new_zeros(*batch.target_output.shape, values.shape[1])
        scores[cells] = values
        if family == "sequence":
            return sequence_oracle(scores, lengths, settings.depth_penalty)[sites.sentence]
        smoothing = settings.depth_penalty, settings.sigma, settings.kernel
        return token_oracle(scores, lengths, *smoothing)[cells]


def exit_scores(model: ExitModel, states: list[Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return both scores for oracles, [M, N] each, in float32 at least, without gradient.

    First -log p of the targets [M] at each exit, then 1 if the exit predicts the target, else 0.
    """
    values, hits = [], []
    for exit, state in enumerate(states, 1):
        classifier, predictions = model.classifier(exit), torch.empty_like(targets)
        arguments = state, classifier.weight, classifier.bias, targets
        values.append(linear_nll(*arguments, predictions=predictions))
        hits.append(predictions == targets)
    nll = torch.stack(values, 1)
    return nll, torch.stack(hits, 1).to(nll.dtype)


def family_of(model: ExitModel) -> Family:
    """Return the family of a model's exit predictor. Raises ConfigError if it has none."""
    if model.traits.halting == "none":
        raise no_predictor(model, "geometric")
    return model.traits.halting


EXITS_HALTING = ObjectiveKind(
    "exits-halting",
    "early exits: a decoder and an exit predictor, which learns from an oracle when to exit",
    HaltingSettings,
    CompoundLoss,
    takes_samples=False,
    takes_two_passes=False,
)
