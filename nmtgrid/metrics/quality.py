"""Translation quality against references, by sacreBLEU, each score with its signature."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from nmtgrid.base.errors import InputError


@dataclasses.dataclass(frozen=True)
class Score:
    """A corpus score in percent, with the signature that says how it was computed."""

    value: float
    signature: str


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Score:
    """Return corpus BLEU. On tokenised text, `tokenize="none"` is multi-bleu's protocol."""
    # `force`: that tokenised text looks tokenised is intended here, not worth a warning.
    return _score(BLEU(tokenize=tokenize, lowercase=lowercase, force=True), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> Score:
    """Return corpus chrF2 (character n-grams up to 6)."""
    return _score(CHRF(lowercase=lowercase), hypotheses, references)


def ter(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> Score:
    """Return corpus TER, the edits per reference word; lower is better."""
    return _score(TER(case_sensitive=not lowercase), hypotheses, references)


def sentence_bleu(hypothesis: str, reference: str, tokenize: str = "13a") -> float:
    """Return smoothed BLEU of one sentence, in percent, up to the order it has n-grams for."""
    metric = BLEU(tokenize=tokenize, effective_order=True, force=True)
    return float(metric.sentence_score(hypothesis, [reference]).score)


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    tokenize: str = "13a",
    lowercase: bool = False,
) -> dict[str, Any]:
    """Return BLEU, chrF and TER with their signatures, as JSON keys.

    Raises InputError unless there are as many hypotheses as references, and at least one.
    """
    scores = {
        "bleu": bleu(hypotheses, references, tokenize, lowercase),
        "chrf": chrf(hypotheses, references, lowercase),
        "ter": ter(hypotheses, references, lowercase),
    }
    values: dict[str, Any] = {name: found.value for name, found in scores.items()}
    return values | {f"signature_{name}": found.signature for name, found in scores.items()}


def _score(
    metric: BLEU | CHRF | TER, hypotheses: Sequence[str], references: Sequence[str]
) -> Score:
    if len(hypotheses) != len(references):
        raise InputError(
            f"There are {len(hypotheses):,} hypotheses for {len(references):,} references.",
            "Line n of one must translate line n of the other.",
        )
    if not hypotheses:
        raise InputError("There is no sentence to score.")
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score(float(value), str(metric.get_signature()))
