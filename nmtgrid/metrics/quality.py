"""Translation quality against references, with sacreBLEU; each score has its signature.

Corpus and sentence scores, scores of captions with several references, scores from summed counts
(`ngrams`), and the mean and deviation of a score over runs.
"""

from __future__ import annotations

import dataclasses
import statistics
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy
from numpy.typing import NDArray
from sacrebleu.metrics.base import Signature
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import estimate_ci

from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.metrics.cider import Cider

MetricName = Literal["bleu", "chrf", "ter"]
ScorerName = Literal[MetricName, "mean"]
"""A metric, or the mean of sentence scores from another program."""
TestName = Literal["bootstrap", "randomisation"]
SEED = 12345
"""SacreBLEU's default."""


@dataclasses.dataclass(frozen=True)
class Score:
    """A corpus score in percent, with its signature."""

    value: float
    signature: str


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Score:
    """Return corpus BLEU. On tokenised text, `tokenize="none"` is multi-bleu's protocol."""
    return _score("bleu", hypotheses, references, tokenize, lowercase)


def chrf(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> Score:
    """Return corpus chrF2 (character n-grams up to 6)."""
    return _score("chrf", hypotheses, references, lowercase=lowercase)


def ter(
    hypotheses: Sequence[str],
    references: Sequence[str],
    lowercase: bool = False,
    tokenize: str = "13a",
) -> Score:
    """Return corpus TER, the edits per reference word; lower is better.

    Words are separated by spaces. If BLEU counts characters (`tokenize` is `zh` or `char`), TER
    counts Chinese characters; sacreBLEU's TER supports no other script without spaces.
    """
    return _score("ter", hypotheses, references, tokenize, lowercase)


def sentence_bleu(hypothesis: str, reference: str, tokenize: str = "13a") -> float:
    """Return smoothed BLEU of one sentence, in percent, up to the order of its longest n-gram."""
    metric = BLEU(tokenize=tokenize, effective_order=True, force=True)
    return float(metric.sentence_score(hypothesis, [reference]).score)


def caption_bleu(
    captions: Sequence[str], references: Sequence[Sequence[str]], order: int = 4
) -> Score:
    """Return corpus BLEU of n-grams up to `order` against several references of each caption.

    As in the evaluation of MS-COCO, words are used unchanged, nothing is smoothed, and the closest
    reference length counts. Raises InputError unless there are as many captions as lists of
    references, and at least one.
    """
    most = max(map(len, references), default=0)
    # If a caption has fewer references than others, sacreBLEU takes None for the missing ones.
    streams: list[list[Any]] = [
        [sentences[n] if n < len(sentences) else None for sentences in references]
        for n in range(most)
    ]
    metric = BLEU(tokenize="none", max_ngram_order=order, smooth_method="none", force=True)
    _check_counts(captions, references)
    score = metric.corpus_score(list(captions), streams).score
    return Score(float(score), str(metric.get_signature()))


def caption_cider(captions: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """Return a hundred times CIDEr-D, with the document frequencies of these references.

    Captions and references are words separated by spaces. Raises InputError like `caption_bleu`.
    """
    _check_counts(captions, references)
    words = [[line.split() for line in sentences] for sentences in references]
    metric = Cider(words)
    value = 100.0 * metric.corpus([line.split() for line in captions], words)
    return Score(value, f"{metric.signature}|times:100")


def caption_scores(captions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return BLEU-1 to BLEU-4 and a hundred times CIDEr-D, with signatures, as JSON keys.

    Captions and references are words separated by spaces. Raises InputError like `caption_bleu`.
    """
    scores = {f"bleu_{n}": caption_bleu(captions, references, n) for n in range(1, 5)}
    scores["cider"] = caption_cider(captions, references)
    values: dict[str, Any] = {name: score.value for name, score in scores.items()}
    return values | {f"signature_{name}": score.signature for name, score in scores.items()}


def _metric(name: MetricName, tokenize: str, lowercase: bool) -> Any:
    if name not in get_args(MetricName):
        raise ConfigError(
            f"There is no metric `{name}`.", f"There are {', '.join(get_args(MetricName))}."
        )
    if name == "bleu":
        # `force` suppresses the warning that text looks tokenised, which is intended here.
        return BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    if name == "chrf":
        return CHRF(lowercase=lowercase)
    # Without `normalized`, `asian_support` has no effect.
    is_unspaced = tokenize in ("zh", "char")
    return TER(normalized=is_unspaced, asian_support=is_unspaced, case_sensitive=not lowercase)


def _score(
    name: MetricName,
    hypotheses: Sequence[str],
    references: Sequence[str],
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Score:
    _check_counts(hypotheses, references)
    metric = _metric(name, tokenize, lowercase)
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score(float(value), str(metric.get_signature()))


def _check_counts(hypotheses: Sequence[str], references: Sequence[Any]) -> None:
    if len(hypotheses) != len(references):
        raise InputError(
            f"There are {len(hypotheses):,} hypotheses for {len(references):,} references.",
            "Line n of one must translate line n of the other.",
        )
    if not hypotheses:
        raise InputError("There are no sentences to score.")


def tokenizer(tokenize: str = "13a", lowercase: bool = False) -> Callable[[str], list[str]]:
    """Return the function that splits a line into the tokens that BLEU counts."""
    metric = _metric("bleu", tokenize, lowercase)
    return lambda line: metric._preprocess_segment(line).split()


def ter_counts(
    hypotheses: Sequence[str],
    references: Sequence[str],
    lowercase: bool = False,
    tokenize: str = "13a",
) -> list[list[float]]:
    """Return edits and reference words of each sentence, as counted by `ter`; slow."""
    metric = _metric("ter", tokenize, lowercase)
    statistics: list[list[float]] = metric._extract_corpus_statistics(hypotheses, [references])
    return statistics


class Scorer:
    """Turns sums of a metric's counts (of `ngrams`, `ter_counts`) into scores in percent.

    As `mean` it averages: the sums are that of sentence scores from another program, and the number
    of sentences.
    """

    def __init__(self, name: ScorerName, tokenize: str = "13a", lowercase: bool = False) -> None:
        """Raise ConfigError for an unknown name."""
        self._metric: Any = _Mean() if name == "mean" else _metric(name, tokenize, lowercase)
        self._metric.num_refs = 1
        self.signature = str(self._metric.get_signature())

    def score(self, counts: Sequence[float]) -> float:
        """Return the score of the sentences whose counts have been summed."""
        return float(self._metric._compute_score_from_stats(list(counts)).score)

    def tested(self, kind: TestName, samples: int, seed: int) -> str:
        """Return the signature of a test, as sacreBLEU writes it."""
        signature = self._metric.get_signature()
        signature.update("seed", str(seed))
        signature.update("bs" if kind == "bootstrap" else "ar", samples)
        return str(signature)


class _Mean:
    """The mean of sentence scores from another program, with a signature like sacreBLEU's."""

    num_refs: int

    def get_signature(self) -> Signature:
        signature = Signature({"num_refs": self.num_refs})
        signature.update("score", "mean")
        return signature

    def _compute_score_from_stats(self, sums: Sequence[float]) -> types.SimpleNamespace:
        return types.SimpleNamespace(score=sums[0] / sums[1])


def mean_of_samples(scores: NDArray[numpy.float64]) -> tuple[float, float]:
    """Return the mean of resampled scores, and the distance within which 95 % of them are."""
    mean, reach = estimate_ci(scores)
    return float(mean), float(reach)


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Return `mean` and sample `standard_deviation` (None for one value) of one or more values."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.mean(values), "standard_deviation": deviation}


def shown(spread_of: Mapping[str, float | None], form: str = ".2f") -> str:
    """Return a spread as text: the mean, and ± the deviation if there is one."""
    mean, deviation = spread_of["mean"], spread_of["standard_deviation"]
    return f"{mean:{form}}" + ("" if deviation is None else f" ± {deviation:{form.lstrip('+')}}")
