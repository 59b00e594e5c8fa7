"""Settings with a statistical guarantee: Learn then Test (Angelopoulos et al., 2021).

Fixed-sequence testing: candidates are tested from the safest to the fastest, in an order chosen on
other sentences. The null hypothesis is that the mean loss is above the bound; testing ends at the
first candidate for which it is not rejected, and all that passed keep the bound with the requested
confidence, whatever the number of candidates. Losses of sentences are in [0, 1], against the
translations of a baseline: the full stack for early exits (`adaptive-tune`), the whole source read
for reading policies (`online-eval`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Literal, TypeVar

import numpy
from numpy.typing import NDArray

from nmtgrid.base.errors import ConfigError
from nmtgrid.metrics.quality import sentence_bleu

Candidate = TypeVar("Candidate")
Item = TypeVar("Item")
Risk = Literal["bleu", "agreement"]
"""The loss: the drop in sentence BLEU, or the share of units that differ from the baseline's."""

_TINY = 1e-9
"""Relative rounding error of a sum of losses."""


@dataclasses.dataclass(frozen=True)
class Tested(Generic[Candidate]):
    """A candidate with its mean loss over `count` sentences and the p-value of its test."""

    candidate: Candidate
    mean_loss: float
    p_value: float
    passed: bool


def fixed_sequence(
    candidates: Iterable[Candidate],
    losses: Callable[[Candidate], NDArray[Any]],
    bound: float,
    confidence: float,
) -> list[Tested[Candidate]]:
    """Return the candidates that were tested, in order; only the last may have failed.

    `losses` returns the loss of each sentence, and is called only for candidates that are tested.
    """
    tested: list[Tested[Candidate]] = []
    for candidate in candidates:
        values = numpy.asarray(losses(candidate), dtype=float)
        mean = float(values.mean())
        chance = hoeffding_bentkus(mean, len(values), bound)
        tested.append(Tested(candidate, mean, chance, chance <= 1 - confidence))
        if not tested[-1].passed:
            break
    return tested


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """The requested guarantee: a mean loss of at most `allowed` percent, with a `confidence`."""

    risk: Risk
    allowed: float
    confidence: float

    def faults(self) -> list[str]:
        """Return what is wrong with the values, one sentence each."""
        ranges = (("--allow-loss", self.allowed, 100), ("--confidence", self.confidence, 1))
        # Written as a negation to reject NaN too, for which every comparison is false.
        return [
            f"`{name}` must be above 0 and below {most}, but is {value:g}."
            for name, value, most in ranges
            if not 0 < value < most
        ]

    def check(self, count: int) -> None:
        """Raise ConfigError for invalid values, or for too few sentences.

        `count` is the number of sentences to test on, half of a split.
        """
        if faults := self.faults():
            raise ConfigError(faults)
        needed = least_count(self.allowed / 100, self.confidence)
        if needed is not None and count < needed:
            raise ConfigError(
                f"A loss of at most {self.allowed:g} cannot be guaranteed with confidence "
                f"{self.confidence:g} from {count:,} sentences: not even without any loss. "
                f"{needed:,} are needed to test on.",
                f"Take a split of {2 * needed:,} sentences or more (half of them choose the "
                "candidates), allow a larger loss, or ask for less confidence.",
            )

    def test(
        self,
        candidates: Iterable[Candidate],
        losses: Callable[[Candidate], NDArray[Any]],
        count: int,
    ) -> Calibration[Candidate]:
        """Return the result of testing the candidates, safest first, on `count` sentences.

        `losses` is as in `fixed_sequence`.
        """
        tested = fixed_sequence(candidates, losses, self.allowed / 100, self.confidence)
        return Calibration(self, count, tested)

    def outside(self, split: str, losses: NDArray[Any]) -> dict[str, Any]:
        """Return JSON keys: whether the mean loss on sentences of another split keeps the bound."""
        loss = 100 * float(losses.mean()) if len(losses) else 0.0
        return {
            "split": split,
            "sentences": len(losses),
            "loss": loss,
            "holds": loss <= self.allowed,
        }


@dataclasses.dataclass(frozen=True)
class Calibration(Generic[Candidate]):
    """The candidates that were tested for a guarantee on `count` sentences, at least one."""

    guarantee: Guarantee
    count: int
    tested: list[Tested[Candidate]]

    @property
    def passed(self) -> list[Tested[Candidate]]:
        return [result for result in self.tested if result.passed]

    def values(
        self,
        chosen: Tested[Candidate] | None,
        describe: Callable[[Candidate], dict[str, Any]],
    ) -> dict[str, Any]:
        """Return JSON keys: the candidate `chosen` from those that passed, and all tested ones.

        `describe` returns the keys of a candidate. If none passed, `needed` is the number of
        sentences with which the safest would have passed, or None.
        """
        rows = [
            {
                **describe(result.candidate),
                "loss": 100 * result.mean_loss,
                "p_value": result.p_value,
                "passed": result.passed,
            }
            for result in self.tested
        ]
        best = dict.fromkeys(rows[0]) if chosen is None else rows[self.tested.index(chosen)]
        values: dict[str, Any] = {
            "risk": self.guarantee.risk,
            "allow_loss": self.guarantee.allowed,
            "confidence": self.guarantee.confidence,
            "sentences": self.count,
            "certified": chosen is not None,
            **{name: value for name, value in best.items() if name != "passed"},
            "tested": rows,
        }
        if chosen is None:
            # Candidates are tested from the safest on: if none passed, the first one failed.
            bound, mean = self.guarantee.allowed / 100, self.tested[0].mean_loss
            values["needed"] = least_count(bound, self.guarantee.confidence, mean)
        return values


def hoeffding_bentkus(mean_loss: float, count: int, bound: float) -> float:
    """Return the Hoeffding-Bentkus p-value of "the expected loss is above `bound`".

    For the mean of `count` independent losses in [0, 1].
    """
    # Hoeffding's bound is one-sided: at a mean above the bound it says nothing, and is 1.
    below = min(mean_loss, bound)
    hoeffding = math.exp(-count * _divergence(below, bound))
    # Bentkus: e times the binomial's tail. The sum is rounded up, but not because of its rounding
    # error, which would cost a whole unit of loss.
    total = math.ceil(count * mean_loss - _TINY * max(1.0, count * mean_loss))
    return min(1.0, hoeffding, math.e * binomial_cdf(total, count, bound))


def binomial_cdf(successes: int, count: int, chance: float) -> float:
    """Return the probability of at most `successes` in `count` trials."""
    if successes >= count:
        return 1.0
    # Logarithms: the binomial coefficients of thousands of sentences exceed the range of floats.
    each = [
        math.lgamma(count + 1)
        - math.lgamma(number + 1)
        - math.lgamma(count - number + 1)
        + number * math.log(chance)
        + (count - number) * math.log1p(-chance)
        for number in range(successes + 1)
    ]
    return min(1.0, math.fsum(map(math.exp, each)))


def least_count(bound: float, confidence: float, mean_loss: float = 0.0) -> int | None:
    """Return the number of sentences with which a mean loss passes, or None if it is too large.

    For a loss of 0 it is the least number; with others slightly fewer may be enough.
    """
    if mean_loss >= bound:
        return None
    # Hoeffding's bound solved for the count.
    return math.ceil(-math.log1p(-confidence) / _divergence(mean_loss, bound) - _TINY)


def halves(items: Sequence[Item], seed: int) -> tuple[list[Item], list[Item]]:
    """Return two random halves, each in the order of `items`; the second gets the odd one."""
    mixed = numpy.random.default_rng(seed).permutation(len(items)).tolist()
    middle = len(items) // 2
    first, second = sorted(mixed[:middle]), sorted(mixed[middle:])
    return [items[index] for index in first], [items[index] for index in second]


Translated = tuple[Sequence[Any], str]
"""A translation: its units, and its words as tokenised text."""


def sentence_losses(
    risk: Risk,
    baseline: Sequence[Translated],
    translations: Sequence[Translated],
    references: Sequence[str],
    tokenize: str,
) -> NDArray[Any]:
    """Return the loss of each sentence against its translation by the baseline, in [0, 1].

    `tokenize` is as in `bleu_losses`. Sentences without a source must be left out: counted as
    losses of 0, they would make the mean too small.
    """
    if risk == "bleu":
        theirs, ours = ([text for _, text in side] for side in (baseline, translations))
        return bleu_losses(theirs, ours, references, tokenize)
    return agreement_losses(*([units for units, _ in side] for side in (baseline, translations)))


def bleu_losses(
    baseline: Sequence[str], translations: Sequence[str], references: Sequence[str], tokenize: str
) -> NDArray[Any]:
    """Return the drop in sentence BLEU of each translation, in [0, 1]; 0 if it is not worse.

    All are tokenised text; `tokenize` is the name of sacreBLEU's tokenizer.
    """
    losses: NDArray[Any] = numpy.zeros(len(references))
    rows = zip(baseline, translations, references, strict=True)
    for index, (best, text, reference) in enumerate(rows):
        # Most translations are equal, and sentence BLEU is slow.
        if text != best:
            best_score, score = (sentence_bleu(each, reference, tokenize) for each in (best, text))
            losses[index] = (best_score - score) / 100
    return losses.clip(0.0, 1.0)


def agreement_losses(baseline: Sequence[Any], translations: Sequence[Any]) -> NDArray[Any]:
    """Return the share of units of each translation that differ from the baseline's, in [0, 1].

    It is the number of units to insert, delete or replace over the length of the longer one.
    """
    return numpy.array(
        [
            edit_distance(best, units) / max(len(best), len(units), 1)
            for best, units in zip(baseline, translations, strict=True)
        ]
    )


def edit_distance(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return the least number of units to insert, delete or replace (Levenshtein)."""
    if list(first) == list(second):
        return 0
    columns = numpy.arange(len(second) + 1)
    row = columns.copy()
    for number, unit in enumerate(first, 1):
        differs = numpy.array([unit != other for other in second], dtype=int)
        following = numpy.concatenate([[number], numpy.minimum(row[1:] + 1, row[:-1] + differs)])
        # Insertions move along the row and cost one per step: with that slope subtracted, the best
        # cell to the left is a running minimum, which needs no loop over columns.
        row = numpy.minimum.accumulate(following - columns) + columns
    return int(row[-1])


def _divergence(mean: float, bound: float) -> float:
    """Return the relative entropy of Bernoulli distributions with means `mean` and `bound`."""
    divergence = (1 - mean) * math.log((1 - mean) / (1 - bound))
    return divergence if mean == 0 else divergence + mean * math.log(mean / bound)
