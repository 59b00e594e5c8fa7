"""What a comparison writes as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from nmtgrid.analysis.quality.compare_analysis import WordAccuracy
from nmtgrid.analysis.quality.compare_scores import Scores, Test
from nmtgrid.analysis.quality.compare_tables import Shown
from nmtgrid.analysis.quality.evaluation import Evaluation
from nmtgrid.analysis.quality.words import Example


def scores_report(found: Scores) -> dict[str, Any]:
    """Return the corpus scores and their signatures."""
    return {
        "systems": [
            {"system": system, **{name: held[place] for name, held in found.values.items()}}
            for place, system in enumerate(found.systems)
        ],
        **{f"signature_{name}": signature for name, signature in found.signatures.items()},
    }


def test_report(names: Sequence[str], one: Test) -> dict[str, Any]:
    """Return a test by metric and system."""
    return {
        "test": one.kind,
        "samples": one.samples,
        "seed": one.seed,
        "against": names[0],
        "metrics": [
            {
                "metric": metric,
                "signature": one.signatures[metric],
                "systems": [
                    {
                        "system": name,
                        "score": tested.score,
                        "p_value": tested.p_value,
                        "bootstrap_mean": tested.mean,
                        "interval_95": tested.interval,
                    }
                    for name, tested in zip(names, held, strict=True)
                ],
            }
            for metric, held in one.systems.items()
        ],
    }


def words_report(words: WordAccuracy, where: str) -> dict[str, Any]:
    """Return word accuracy, as shares."""
    return {
        "frequency_in": where,
        "buckets": list(words.labels),
        "reference_words": list(words.reference_words),
        "systems": [dataclasses.asdict(one) for one in words.systems],
    }


def examples_report(evaluation: Evaluation, shown: Shown) -> list[dict[str, Any]]:
    """Return the sentences that differ most, by system."""
    names = evaluation.names

    def told(system: int, held: Sequence[Example]) -> list[dict[str, Any]]:
        return [
            {
                "line": one.line,
                "reference": evaluation.reference_lines[one.line - 1],
                "first": evaluation.systems[0].lines[one.line - 1],
                "second": evaluation.systems[system].lines[one.line - 1],
                "sentence_bleu_first": one.first,
                "sentence_bleu_second": one.second,
            }
            for one in held
        ]

    return [
        {
            "first": names[0],
            "second": names[system],
            "better_first": told(system, ahead),
            "better_second": told(system, behind),
        }
        for system, (ahead, behind) in enumerate(shown, start=1)
    ]
