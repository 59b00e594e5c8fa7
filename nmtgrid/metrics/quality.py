"""Translation quality against references, by sacreBLEU; each score carries its signature.

Corpus and sentence scores, scores of captions with several references, significance tests of
several systems, and the mean and deviation of a score over runs. Tests resample statistics of
sentences that are counted once (`ngrams`); sacreBLEU draws and scores.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import statistics
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast, get_args

import numpy
import sacrebleu.significance
from numpy.typing import NDArray
from sacrebleu.metrics.base import Signature
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.metrics.cider import Cider

MetricName = Literal["bleu", "chrf", "ter"]
TestName = Literal["bootstrap", "randomisation"]
SEED = 12345
"""SacreBLEU's own."""
_MOST_BYTES = 4 * 2**30
"""Of what a test draws at once."""
ROUNDING = 1e-9
"""Scores that differ by less are equal."""


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

    Words stand between spaces. Where BLEU counts characters (`tokenize` is `zh` or `char`), so does
    TER, of Chinese characters; of other scripts without spaces sacreBLEU's TER knows nothing.
    """
    return _score("ter", hypotheses, references, tokenize, lowercase)


def sentence_bleu(hypothesis: str, reference: str, tokenize: str = "13a") -> float:
    """Return smoothed BLEU of one sentence, in percent, up to the order it has n-grams for."""
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
    # Where a caption has fewer references than others, sacreBLEU takes None for those missing.
    streams: list[list[Any]] = [
        [sentences[n] if n < len(sentences) else None for sentences in references]
        for n in range(most)
    ]
    metric = BLEU(tokenize="none", max_ngram_order=order, smooth_method="none", force=True)
    _check_counts(captions, references)
    score = metric.corpus_score(list(captions), streams).score
    return Score(float(score), str(metric.get_signature()))


def caption_cider(captions: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """Return a hundred times CIDEr-D, by the document frequencies of these references.

    Captions and references are words between spaces. Raises InputError as `caption_bleu` does.
    """
    _check_counts(captions, references)
    words = [[line.split() for line in sentences] for sentences in references]
    metric = Cider(words)
    value = 100.0 * metric.corpus([line.split() for line in captions], words)
    return Score(value, f"{metric.signature}|times:100")


def caption_scores(captions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return BLEU-1 to BLEU-4 and a hundred times CIDEr-D, with signatures, as JSON keys.

    Captions and references are words between spaces. Raises InputError as `caption_bleu` does.
    """
    scores = {f"bleu_{n}": caption_bleu(captions, references, n) for n in range(1, 5)}
    scores["cider"] = caption_cider(captions, references)
    values: dict[str, Any] = {name: score.value for name, score in scores.items()}
    return values | {f"signature_{name}": score.signature for name, score in scores.items()}


def _metric(name: MetricName, tokenize: str, lowercase: bool) -> Any:
    if name == "bleu":
        # `force`: that tokenised text looks tokenised is intended here, not worth a warning.
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
    """Return what splits a line into the tokens that BLEU counts."""
    metric = _metric("bleu", tokenize, lowercase)
    return lambda line: metric._preprocess_segment(line).split()


def ter_counts(
    hypotheses: Sequence[str],
    references: Sequence[str],
    lowercase: bool = False,
    tokenize: str = "13a",
) -> list[list[float]]:
    """Return edits and reference words of each sentence, as `ter` counts them; slow."""
    metric = _metric("ter", tokenize, lowercase)
    statistics: list[list[float]] = metric._extract_corpus_statistics(hypotheses, [references])
    return statistics


class Scorer:
    """Turns sums of a metric's counts (of `ngrams`, `ter_counts`) into scores in percent.

    Under another name than a metric's it makes means of them.
    """

    def __init__(self, name: str, tokenize: str = "13a", lowercase: bool = False) -> None:
        self._metric = _counted(name, tokenize, lowercase)
        self.signature = str(self._metric.get_signature())

    def score(self, counts: Sequence[float]) -> float:
        """Return the score of the sentences whose counts have been summed."""
        return float(self._metric._compute_score_from_stats(list(counts)).score)


def paired_test(
    kind: TestName,
    samples: int,
    counts: Mapping[str, Sequence[NDArray[Any]]],
    tokenize: str = "13a",
    lowercase: bool = False,
    seed: int = SEED,
) -> dict[str, tuple[list[dict[str, Any]], str]]:
    """Return for each metric the comparison of each system with the first, and the signature.

    As JSON keys: the `score`, a metric's in percent, and the `p_value`; of the bootstrap the mean
    of the resamples, and how far from it 95 % of them reach. The first system has no p-value;
    neither has one that is `identical` to it, all of whose sentences have the same statistics.

    `counts` has [sentences, columns] for each system; under another name than a metric's they are
    [sentences, 2], the first divided by the second. These are sacreBLEU's own paired bootstrap
    and approximate randomisation, with its random numbers. Raises ConfigError if more than 4 GiB of
    random numbers would be needed at once.

    Departs: SacreBLEU counts samples whose difference is greater than the real one. Here those
    where it is as great count too, as the test needs: systems that differ in a few sentences alone
    have few possible differences, and their greatest one would have the least p-value there is.
    """
    first = next(iter(counts.values()))
    _check_memory(kind, samples, len(first[0]), max(array[0].shape[1] for array in counts.values()))
    systems = [
        (str(index), _Lines({name: array[index] for name, array in counts.items()}))
        for index in range(len(first))
    ]
    metrics = {name: _counted(name, tokenize, lowercase) for name in counts}
    with _seeded(seed), _ties_counted():
        short = "bs" if kind == "bootstrap" else "ar"
        # What stands where sacreBLEU expects lines is counted already.
        test = sacrebleu.significance.PairedTest(systems, metrics, None, short, samples)  # type: ignore[arg-type]
        signatures, scores = test()

    def tested(result: Any, is_identical: bool) -> dict[str, Any]:
        figures = {
            "score": result.score,
            "p_value": None if is_identical else result.p_value,
            "bootstrap_mean": result.mean,
            "interval_95": result.ci,
        }
        numbers = {name: None if n is None else float(n) for name, n in figures.items()}
        return {**numbers, "identical": is_identical}

    # SacreBLEU names its answers as it prints them, in the order of the metrics.
    titles = [name for name in scores if name != "System"]
    answers = {}
    for (name, arrays), title in zip(counts.items(), titles, strict=True):
        alike = [False, *(numpy.array_equal(own, arrays[0]) for own in arrays[1:])]
        results = [*map(tested, scores[title], alike)]
        answers[name] = results, str(signatures[title])
    return answers


class _Lines:
    """A placeholder for a system's lines in sacreBLEU: the statistics that it would count."""

    def __init__(self, counts: Mapping[str, NDArray[Any]]) -> None:
        self.counts = counts

    def __len__(self) -> int:
        return len(next(iter(self.counts.values())))


class _Mean:
    """The mean of what another program gave each sentence, as sacreBLEU's tests take metrics."""

    def __init__(self, name: str) -> None:
        self.name = name

    def get_signature(self) -> Signature:
        signature = Signature({"num_refs": None})
        signature.update("score", "mean")
        return signature

    def _aggregate_and_compute(self, statistics: Sequence[Any]) -> types.SimpleNamespace:
        return self._compute_score_from_stats(numpy.sum(statistics, axis=0))

    def _compute_score_from_stats(self, sums: Sequence[float]) -> types.SimpleNamespace:
        return types.SimpleNamespace(name=self.name, score=sums[0] / sums[1])


def _counted(name: str, tokenize: str, lowercase: bool) -> Any:
    """Return sacreBLEU's metric, or a mean, made to take `_Lines`."""
    is_metric = name in get_args(MetricName)
    metric: Any = _metric(cast(MetricName, name), tokenize, lowercase) if is_metric else _Mean(name)
    metric.num_refs = 1

    # SacreBLEU's test asks its metrics for the statistics of each line once and then only sums
    # resampled rows; here they are there already.
    metric._extract_corpus_statistics = lambda lines, _: lines.counts[name].tolist()
    return metric


def most_samples(kind: TestName, sentences: int, columns: int) -> int:
    """Return how many samples of so many sentences a test may draw within 4 GiB of memory."""
    # Bytes a sentence and sample. Bootstrap: the index drawn and the counts gathered by it.
    # Randomisation: two boolean choices, and one of them as an integer.
    bytes_each = 8 + 4 * columns if kind == "bootstrap" else 10
    return _MOST_BYTES // (sentences * bytes_each)


def _check_memory(kind: TestName, samples: int, sentences: int, columns: int) -> None:
    fitting = most_samples(kind, sentences, columns)
    if samples > fitting:
        raise ConfigError(
            f"SacreBLEU's {kind} of {samples:,} samples of {sentences:,} sentences would take more "
            f"than {_MOST_BYTES >> 30} GiB of memory.",
            f"Ask for {fitting:,} samples or fewer." if fitting else "Test on fewer sentences.",
        )


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Set the seed where sacreBLEU looks for it, and silence its log."""
    name = "SACREBLEU_SEED"
    # It reads the environment at each test; its old value is put back.
    before, logger = os.environ.get(name), logging.getLogger("sacrebleu")
    level = logger.level
    os.environ[name] = str(seed)
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextlib.contextmanager
def _ties_counted() -> Iterator[None]:
    """Have sacreBLEU count samples whose difference is as great as the real one; see above."""
    name = "_compute_p_value"
    strictly = getattr(sacrebleu.significance, name)
    setattr(sacrebleu.significance, name, lambda stats, real: strictly(stats, real - ROUNDING))
    try:
        yield
    finally:
        setattr(sacrebleu.significance, name, strictly)


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Return `mean` and sample `standard_deviation` of `values` (one at least; None for one)."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.mean(values), "standard_deviation": deviation}


def shown(spread_of: Mapping[str, float | None], form: str = ".2f") -> str:
    """Return a spread as people write it: the mean, then ± the deviation where there is one."""
    mean, deviation = spread_of["mean"], spread_of["standard_deviation"]
    return f"{mean:{form}}" + ("" if deviation is None else f" ± {deviation:{form.lstrip('+')}}")
