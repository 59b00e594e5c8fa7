"""Published curves of BLEU against latency, to plot next to your own.

Test sets with greedy decoding; BLEU on tokenised text (`multi-bleu`), lower-cased where stated; AL
with the length of the hypothesis, in source tokens: BPE units, or words for corpora without BPE.
The thesis counts no end symbol. The published evaluations of ITST and HMT count it on both sides,
which shifts AL by 0.00 to 0.07 for wait-k, and by 1 token for paths that read everything first.

"Thesis" is appendix D of the thesis. Each of its wait-k curves belongs to one model, trained along
many paths (k sampled in [1..|x|] for the Transformer, all cells to the right of wait-1 for
Pervasive Attention) and evaluated at k = 1, 3, 5, 7, 9. Tables D.3 and D.10 contradict each other
on Pervasive Attention at k = 5, IWSLT'14 De-En (29.96 and 28.96); the first value is used. The
dynamic rows of table D.11 (a copy of D.8) are left out.

For other papers these are the authors' own figures, from the paper or its code, up to an AL of
about 10, where the thesis' curves end. Curves that a later paper reports for an earlier policy are
marked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

from nmtgrid.base.errors import ConfigError, nearest


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A test set: its name, languages and size, and the unit of latencies on it."""

    name: str
    languages: tuple[str, str]
    sentences: int
    unit: Literal["BPE", "words"]


CORPORA = {
    "iwslt14-de-en": Corpus("IWSLT'14 De-En", ("de", "en"), 6750, "BPE"),
    "iwslt14-en-de": Corpus("IWSLT'14 En-De", ("en", "de"), 6750, "BPE"),
    "iwslt15-en-vi": Corpus("IWSLT'15 En-Vi", ("en", "vi"), 1268, "words"),
    "iwslt15-vi-en": Corpus("IWSLT'15 Vi-En", ("vi", "en"), 1268, "words"),
    "wmt15-de-en": Corpus("WMT'15 De-En", ("de", "en"), 2169, "BPE"),
}
"""The test sets of the curves; `unit` says whether their models read words or BPE units."""


@dataclasses.dataclass(frozen=True)
class Point:
    """BLEU in percent and average lagging in source tokens; `setting`: k, or the threshold."""

    bleu: float
    al: float
    setting: float | None = None


@dataclasses.dataclass(frozen=True)
class Curve:
    """One published model on one test set, with points in order of latency.

    `policy` is `wait-k`, `dynamic` (the thesis' agents) or a policy's name in its paper;
    `lowercase` says that BLEU ignores case, because of the data or of `multi-bleu -lc`.
    """

    data: str
    label: str
    policy: str
    source: str
    lowercase: bool
    points: tuple[Point, ...]

    @property
    def corpus(self) -> Corpus:
        """The test set."""
        return CORPORA[self.data]

    @property
    def name(self) -> str:
        """The label next to the curve: its text up to the first comma."""
        return self.label.partition(",")[0]

    @property
    def title(self) -> str:
        """The text of a legend: model, source, corpus, case of BLEU, and unit of AL."""
        case = "lc" if self.lowercase else "cased"
        corpus = self.corpus
        return f"{self.label}, {self.source}; {corpus.name}, {case}, {corpus.unit}"


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The properties of an evaluation that comparisons need (None: unknown)."""

    languages: tuple[str, str] | None = None
    sentences: int | None = None
    lowercase: bool | None = None
    subwords: Literal["bpe", "words", "sentencepiece"] | None = None


def curves(data: str) -> tuple[Curve, ...]:
    """Return the curves on a data set such as `iwslt14-de-en`, the thesis' first.

    Raises ConfigError for a data set without curves.
    """
    matching = tuple(curve for curve in CURVES if curve.data == data)
    if not matching:
        raise ConfigError(f"There are no published curves for `{data}`.", nearest(data, CORPORA))
    return matching


def mismatches(curve: Curve, evaluation: Evaluation, unit: Literal["token", "word"]) -> list[str]:
    """Return why a curve is not comparable with an evaluation whose latency counts `unit`s."""
    corpus, reasons = curve.corpus, []
    if evaluation.languages not in (None, corpus.languages):
        ours, theirs = ("-".join(pair) for pair in (evaluation.languages, corpus.languages))
        reasons.append(f"the published curves are of {corpus.name} ({theirs}), not {ours}.")
    elif evaluation.sentences not in (None, corpus.sentences):
        reasons.append(
            f"the published curves are of the {corpus.sentences:,} test sentences of "
            f"{corpus.name}; here there are {evaluation.sentences:,}."
        )
    if evaluation.lowercase not in (None, curve.lowercase):
        theirs, ours = ("lower-cased", "cased") if curve.lowercase else ("cased", "lower-cased")
        mark = "lc" if curve.lowercase else "cased"
        reasons.append(
            f"BLEU of the published curves marked `{mark}` is {theirs}; here it is {ours}."
        )
    kinds = {"words": "words", "sentencepiece": "pieces"}
    counted = "words" if unit == "word" else kinds.get(evaluation.subwords or "", "BPE")
    is_known = unit == "word" or evaluation.subwords is not None
    if is_known and counted != corpus.unit:
        shown = {"BPE": "BPE tokens", "words": "words", "pieces": "pieces of SentencePiece"}
        option = {"BPE": "token", "words": "word"}[corpus.unit]
        advice = f" (`--unit {option}`)" if option != unit else ""
        reasons.append(
            f"AL of the published curves counts {shown[corpus.unit]}{advice}; here it counts "
            f"{shown[counted]}."
        )
    return reasons


def warnings(
    data: str, evaluations: Iterable[Evaluation], unit: Literal["token", "word"]
) -> list[str]:
    """Return how the evaluations differ from the curves on `data`, each difference once."""
    reasons = [
        reason
        for evaluation in evaluations
        for curve in curves(data)
        for reason in mismatches(curve, evaluation, unit)
    ]
    return list(dict.fromkeys(reasons))


# The thesis' models: how they were trained and, for agents, the weights they started from.
_PERVASIVE = "Pervasive Attention, multi-path wait-k"
_TRANSFORMER = "Transformer, multi-path wait-k"
_OFFLINE_START = "Dynamic agent, offline start"
_PATHS_START = "Dynamic agent, multi-path start"
_WAITS = (1, 3, 5, 7, 9)


def _thesis(
    data: str, label: str, table: str, settings: tuple[float, ...],
    bleu: tuple[float, ...], al: tuple[float, ...],
) -> Curve:  # fmt: skip
    points = tuple(Point(b, a, s) for b, a, s in zip(bleu, al, settings, strict=True))
    policy = "wait-k" if settings == _WAITS else "dynamic"
    # The thesis lower-cases IWSLT'14 and keeps the case of the others.
    return Curve(data, label, policy, f"thesis table {table}", data.startswith("iwslt14"), points)


def _paper(data: str, label: str, source: str, points: str) -> Curve:
    """Return a curve of another paper, its points as BLEU@AL.

    All are marked as lower-cased: `multi-bleu -lc` is what the READMEs of ITST, Wait-info, HMT, GMA
    and Dual Paths say; for BS-SiMT, TIQ and MMA it is assumed.
    """
    numbers = [map(float, point.split("@")) for point in points.split()]
    policy = "wait-k" if "wait-k" in label else label.partition(" (")[0]
    return Curve(data, label, policy, source, True, tuple(Point(b, a) for b, a in numbers))


# Papers, in the order of their curves; the tables of ITST and others come with their code.
_DUAL_PATHS = "Zhang and Feng 2022a"
_GMA = "Zhang and Feng 2022b"
_ITST = "Zhang and Feng 2022c"
_WAIT_INFO = "Zhang et al. 2022"
_HMT = "Zhang and Feng 2023"
_BS_SIMT = "Guo et al. 2023"
_TIQ = "Jain et al. 2023"


CURVES: tuple[Curve, ...] = (
    _thesis(
        "iwslt14-de-en", _PERVASIVE, "D.3", _WAITS,
        # For k = 5 table D.10 has 28.96.
        (19.20, 25.73, 29.96, 30.44, 31.36), (-1.26, 1.28, 3.81, 5.97, 7.90),
    ),
    _thesis(
        "iwslt14-de-en", _TRANSFORMER, "D.3", _WAITS,
        (21.66, 26.46, 29.33, 30.84, 31.51), (-0.20, 1.82, 3.99, 5.98, 7.81),
    ),
    _thesis(
        "iwslt14-de-en", f"{_OFFLINE_START}, λ = 0", "D.8",
        (0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2),  # the print cuts the last column off
        (23.60, 26.00, 27.50, 29.39, 30.56, 31.14, 31.63, 32.02, 32.24),
        (0.66, 1.40, 1.91, 2.67, 3.32, 3.98, 4.73, 5.65, 6.86),
    ),
    _thesis(
        "iwslt14-de-en", f"{_PATHS_START}, λ = 1", "D.10",
        (0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2),
        (15.20, 19.99, 23.97, 27.04, 29.08, 30.58, 31.47),
        (-2.57, -1.01, 0.35, 1.60, 2.56, 3.51, 4.47),
    ),
    _thesis(
        "iwslt14-en-de", _PERVASIVE, "D.4", _WAITS,
        (19.05, 23.55, 25.44, 26.17, 26.39), (1.05, 3.14, 5.05, 6.92, 8.68),
    ),
    _thesis(
        "iwslt14-en-de", _TRANSFORMER, "D.4", _WAITS,
        (18.60, 23.04, 25.07, 25.80, 26.09), (1.51, 3.36, 5.15, 6.96, 8.68),
    ),
    _thesis(
        "iwslt14-en-de", f"{_PATHS_START}, λ = 0", "D.13",
        (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2),
        (20.75, 23.85, 25.25, 25.94, 26.35, 26.70, 26.81, 26.86),
        (1.69, 2.53, 3.07, 3.57, 4.10, 4.67, 5.34, 6.19),
    ),
    _thesis(
        "iwslt15-en-vi", _PERVASIVE, "D.5", _WAITS,
        (27.35, 29.27, 29.57, 29.65, 29.67), (2.91, 4.65, 6.39, 8.11, 9.69),
    ),
    _thesis(
        "iwslt15-en-vi", _TRANSFORMER, "D.5", _WAITS,
        (26.61, 28.31, 28.67, 28.63, 28.64), (2.80, 4.41, 6.14, 7.88, 9.48),
    ),
    _thesis(
        "iwslt15-en-vi", f"{_PATHS_START}, λ = 1", "D.19",
        (0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1),
        (17.48, 23.19, 27.27, 28.80, 29.37, 29.58, 29.55, 29.73),
        (-1.41, 0.34, 1.65, 2.18, 2.62, 3.00, 3.48, 4.23),
    ),
    _thesis(
        "iwslt15-vi-en", _PERVASIVE, "D.6", _WAITS,
        (10.99, 15.33, 19.03, 21.36, 23.10), (-3.68, -1.51, 1.25, 3.66, 5.90),
    ),
    _thesis(
        "iwslt15-vi-en", _TRANSFORMER, "D.6", _WAITS,
        (10.19, 15.74, 19.35, 22.23, 24.11), (-3.93, -1.46, 1.10, 3.48, 5.74),
    ),
    _thesis(
        "iwslt15-vi-en", f"{_OFFLINE_START}, λ = 0", "D.14",
        (0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1),
        (21.84, 24.44, 25.52, 26.05, 26.37, 26.37, 26.42, 26.57),
        (0.96, 2.42, 3.20, 3.83, 4.43, 5.12, 6.09, 7.71),
    ),
    _thesis(
        "iwslt15-vi-en", f"{_PATHS_START}, λ = 0", "D.16",
        (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2),
        (17.81, 23.43, 24.94, 25.77, 26.17, 26.28, 26.24, 26.35),
        (-0.78, 1.53, 2.46, 3.17, 3.67, 4.23, 4.86, 5.72),
    ),
    _thesis(
        "wmt15-de-en", "Transformer (base), multi-path wait-k", "D.7", _WAITS,
        (18.95, 23.85, 26.36, 28.03, 29.00), (-0.47, 1.58, 3.69, 5.81, 7.80),
    ),
    _thesis(
        "wmt15-de-en", "Transformer (big), multi-path wait-k", "D.7", _WAITS,
        (19.60, 24.54, 27.68, 29.15, 30.15), (0.46, 2.06, 4.08, 6.03, 7.84),
    ),
    _paper(
        "iwslt14-de-en", "wait-k", f"in {_BS_SIMT}", "28.07@3.05 31.14@6.16",
    ),
    _paper(
        "iwslt14-de-en", "multi-path wait-k", f"in {_BS_SIMT}", "27.36@2.53 29.90@4.43 31.49@7.93",
    ),
    _paper("iwslt14-de-en", "MMA", f"in {_BS_SIMT}", "28.00@4.05 30.03@5.45"),
    _paper(
        "iwslt14-de-en", "BS-SiMT", _BS_SIMT, "28.95@3.26 30.44@5.01 31.37@7.00 31.96@8.77",
    ),
    _paper("iwslt14-en-de", "BS-SiMT", _BS_SIMT, "25.53@4.18 26.73@5.66 27.31@8.40"),
    _paper("iwslt15-en-vi", "MMA", "by others (Ma et al. 2020)", "27.73@2.68 28.47@3.57"),
    _paper(
        "iwslt15-en-vi", "GMA", _GMA, "27.95@3.05 28.20@4.01 28.44@5.47 28.56@6.04 28.72@6.55",
    ),
    _paper("iwslt15-en-vi", "ITST", _ITST, "28.56@3.95 28.68@4.55 28.81@6.10 28.82@8.31"),
    _paper(
        "iwslt15-en-vi", "Wait-info", _WAIT_INFO,
        "28.37@3.76 28.45@4.10 28.54@4.60 28.59@5.28 28.70@6.01 28.78@6.80 28.80@7.61 28.82@8.39",
    ),
    _paper(
        "iwslt15-en-vi", "HMT", _HMT,
        "27.99@3.10 28.53@3.72 28.59@4.92 28.78@6.34 28.86@8.15 28.88@9.60",
    ),
    _paper("iwslt15-en-vi", "BS-SiMT", _BS_SIMT, "28.13@2.00 29.05@5.39"),
    _paper(
        "iwslt15-en-vi", "TIQ", _TIQ,
        "28.60@3.10 28.81@3.60 28.90@3.86 28.74@4.58 28.65@5.34 28.67@9.89",
    ),
    _paper(
        "wmt15-de-en", "Dual Paths (base)", _DUAL_PATHS,
        "26.21@2.80 27.04@3.19 28.14@4.02 29.23@7.69",
    ),
    _paper("wmt15-de-en", "GMA (base)", _GMA, "28.12@3.87 28.50@4.66 28.71@5.79 29.23@6.13"),
    _paper(
        "wmt15-de-en", "ITST (base)", _ITST,
        "26.44@2.27 28.22@2.85 29.65@3.83 30.63@5.47 31.58@7.60 31.92@10.17",
    ),
    _paper(
        "wmt15-de-en", "ITST (big)", _ITST,
        "25.90@1.89 27.51@2.44 29.35@2.99 30.83@4.09 31.90@6.07 32.85@8.60",
    ),
    _paper(
        "wmt15-de-en", "Wait-info (base)", _WAIT_INFO,
        "27.55@3.00 28.89@3.78 29.66@4.68 30.12@5.71 30.59@6.66 31.13@7.62 31.28@8.57 31.39@9.48",
    ),
    _paper(
        "wmt15-de-en", "Wait-info (big)", _WAIT_INFO,
        "29.19@3.41 30.42@4.19 31.26@5.12 31.68@6.05 32.04@6.96 32.32@7.94 32.56@8.83 32.86@9.75",
    ),
    _paper(
        "wmt15-de-en", "HMT (base)", _HMT,
        "22.52@0.27 27.60@2.20 29.29@3.46 30.29@4.74 30.90@6.43 31.45@8.37 31.61@10.06",
    ),
    _paper(
        "wmt15-de-en", "HMT (big)", _HMT,
        "22.70@0.06 27.97@2.19 29.91@3.46 30.85@4.85 31.99@6.56 31.98@8.34 32.46@10.12",
    ),
)  # fmt: skip
"""All published curves; the thesis' agents belong to Pervasive Attention models."""
