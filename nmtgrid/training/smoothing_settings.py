"""Settings of loss smoothing (Appendix E), which any objective can be given."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

Reward = Literal["hamming", "bleu", "cider"]
Vocabulary = Literal["all", "batch", "references"]


@dataclasses.dataclass(frozen=True)
class TokenSmoothing:
    """Settings of the token level: a token's target is spread over those that are like it."""

    alpha: float = 0.0
    """Share of the target that is spread; 0: none. Eq. (E.13)."""
    temperature: float = 0.2
    """Tau: how far it spreads, in units of the cosine. Eq. (E.10)."""
    rarity: float = 0.0
    """Beta: what it costs to be as frequent as the true token. Eq. (E.11)."""
    neighbours: int = 0
    """Types of highest reward that are kept for each token; 0: all, as Eq. (E.10) has it."""
    vectors: str = "own"
    """What cosines are between: `own` vectors, learnt from the training targets; the target
    embeddings of a model directory; or a text file with a type and its numbers on each line."""

    def faults(self) -> list[str]:
        """Return what is wrong with the values."""
        found = _shares("token", alpha=self.alpha)
        found += _positive("token", temperature=self.temperature)
        if not 0 <= self.rarity < math.inf:
            found.append(
                f"`smoothing.token.rarity` must be a number from 0 on, but is {self.rarity}."
            )
        if self.neighbours < 0 or self.neighbours == 1:
            found.append(
                "`smoothing.token.neighbours` must be 0, or 2 or more (the nearest to a token is "
                f"itself), but is {self.neighbours}."
            )
        return found


@dataclasses.dataclass(frozen=True)
class SequenceSmoothing:
    """Settings of the sequence level: sentences near the true one are drawn and count too."""

    alpha: float = 0.0
    """Share of the loss that is taken on drawn sentences; 0: none. Eq. (E.12)."""
    reward: Reward = "hamming"
    """What makes a sentence near: few changed tokens, or a high BLEU or CIDEr."""
    temperature: float = 0.37
    """Tau of the reward; the lower, the nearer. Eq. (E.5)."""
    vocabulary: Vocabulary = "all"
    """Types that take a token's place: all, those of the batch, those of the references."""
    substitutes: Literal["uniform", "similar"] = "uniform"
    """Whether they are drawn evenly, or as the token level spreads."""
    samples: int = 1
    """L, the sentences that are drawn for each one."""
    lazy: bool = False
    """Predict drawn sentences from the true prefix: one pass through the model. Eq. (E.16)."""
    rescale: bool = True
    """Count rewards in substitutions, and let the sentences of a distance share what one would
    have: by the Hamming distance a token then changes with odds of exp(-1 / temperature), a
    chance of 6 % at 0.37, whatever the vocabulary. BLEU and CIDEr count in what the first one
    costs; further ones cost less. Off: the exponent is the reward over the temperature, as
    printed."""
    proposal_temperature: float = 0.37
    """Tau of the Hamming distance by which sentences are drawn whose BLEU or CIDEr counts."""

    def faults(self) -> list[str]:
        """Return what is wrong with the values."""
        found = _shares("sequence", alpha=self.alpha)
        found += _positive(
            "sequence",
            temperature=self.temperature,
            proposal_temperature=self.proposal_temperature,
        )
        if self.samples < 1:
            found.append(f"`smoothing.sequence.samples` must be at least 1, but is {self.samples}.")
        if not self.alpha:
            return found
        if self.reward != "hamming" and self.samples == 1:
            found.append(
                f"`smoothing.sequence.reward={self.reward}` weighs the sentences that are drawn "
                "against each other: set `smoothing.sequence.samples` to 2 or more."
            )
        if self.substitutes == "similar" and self.vocabulary != "all":
            found.append(
                "`smoothing.sequence.substitutes=similar` draws from all types: leave "
                "`smoothing.sequence.vocabulary` at `all`."
            )
        return found


@dataclasses.dataclass(frozen=True)
class SmoothingSettings:
    """Settings of loss smoothing; nothing is smoothed unless one of them says so."""

    token: TokenSmoothing = dataclasses.field(default_factory=TokenSmoothing)
    sequence: SequenceSmoothing = dataclasses.field(default_factory=SequenceSmoothing)
    entropy: float = 0.0
    """Gamma: how much less the loss is for a nat of the prediction's entropy (table E.1)."""

    @property
    def is_on(self) -> bool:
        """Whether anything is smoothed."""
        return bool(self.token.alpha or self.sequence.alpha or self.entropy)

    @property
    def needs_spread(self) -> bool:
        """Whether types have to be compared."""
        similar = self.sequence.substitutes == "similar"
        return bool(self.token.alpha or (self.sequence.alpha and similar))

    def without_effect(self) -> list[str]:
        """Return what is set and changes nothing, because something else is not set."""
        groups: list[tuple[str, TokenSmoothing | SequenceSmoothing, bool]] = [
            ("token", self.token, self.needs_spread),
            ("sequence", self.sequence, self.sequence.alpha > 0),
        ]
        found = [
            f"`smoothing.{group}.{field.name}` has no effect while `smoothing.{group}.alpha` is 0."
            for group, held, is_used in groups
            if not is_used
            for field in dataclasses.fields(held)
            if getattr(held, field.name) != field.default
        ]
        sequence, usual = self.sequence, SequenceSmoothing()
        is_other = sequence.proposal_temperature != usual.proposal_temperature
        if sequence.alpha and sequence.reward == "hamming" and is_other:
            found.append(
                "`smoothing.sequence.proposal_temperature` has no effect with the reward "
                "`hamming`, from which sentences are drawn themselves: its `temperature` counts."
            )
        return found

    def faults(self) -> list[str]:
        """Return what is wrong with the values."""
        if 0 <= self.entropy < math.inf:
            return []
        return [f"`smoothing.entropy` must be a number from 0 on, but is {self.entropy}."]


def _shares(group: str, **values: float) -> list[str]:
    return [
        f"`smoothing.{group}.{name}` must be from 0 to 1, but is {value}."
        for name, value in values.items()
        if not 0 <= value <= 1
    ]


def _positive(group: str, **values: float) -> list[str]:
    return [
        f"`smoothing.{group}.{name}` must be a number above 0, but is {value}."
        for name, value in values.items()
        if not 0 < value < math.inf
    ]
