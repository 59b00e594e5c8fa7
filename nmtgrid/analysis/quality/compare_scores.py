"""Corpus scores of several systems, and how sure it is that they differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from nmtgrid.analysis.quality.evaluation import Evaluation
from nmtgrid.metrics.quality import SEED, MetricName, Tested, TestName, paired_test


@dataclasses.dataclass(frozen=True)
class Scores:
    """Percent of each system by metric, with signatures."""

    systems: Sequence[str]
    values: Mapping[MetricName, Sequence[float]]
    signatures: Mapping[MetricName, str]


@dataclasses.dataclass(frozen=True)
class Test:
    """A paired test of all systems against the first, by metric."""

    kind: TestName
    samples: int
    seed: int
    systems: Mapping[MetricName, Sequence[Tested]]
    signatures: Mapping[MetricName, str]


def scores(evaluation: Evaluation, metrics: Sequence[MetricName] = ("bleu", "chrf")) -> Scores:
    """Return the corpus scores, equal to sacreBLEU's."""
    scorers = {name: evaluation.scorer(name) for name in metrics}
    return Scores(
        evaluation.names,
        {
            name: [scorer.score(held.sum(axis=0).tolist()) for held in _counts(evaluation, name)]
            for name, scorer in scorers.items()
        },
        {name: scorer.signature for name, scorer in scorers.items()},
    )


def test(
    evaluation: Evaluation,
    kind: TestName,
    samples: int,
    metrics: Sequence[MetricName] = ("bleu", "chrf"),
    seed: int = SEED,
) -> Test:
    """Return sacreBLEU's test against the first system. Raises ConfigError: see `paired_test`."""
    counts = {name: _counts(evaluation, name) for name in metrics}
    found = paired_test(kind, samples, counts, evaluation.tokenize, evaluation.lowercase, seed)
    return Test(
        kind,
        samples,
        seed,
        {name: held for name, (held, _) in found.items()},
        {name: signature for name, (_, signature) in found.items()},
    )


def _counts(evaluation: Evaluation, name: MetricName) -> Sequence[NDArray[Any]]:
    if name == "ter":
        return evaluation.ter
    return evaluation.bleu if name == "bleu" else evaluation.chrf
