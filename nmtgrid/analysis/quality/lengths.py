"""Length differences: hypothesis length minus reference length, sentence by sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.plotting.bars import draw_steps
from nmtgrid.analysis.quality.evaluation import Evaluation
from nmtgrid.analysis.section import Cell, Picture, Section, Table

# Tokens to each side that the picture shows.
_FEWEST, _MOST = 5, 20
# Share of the sentences that are to lie within.
_SHOWN = 0.99


@dataclasses.dataclass(frozen=True)
class LengthDifferences:
    """Length differences [sentences] of one system in tokens, and their statistics.

    Shares sum to 1.
    """

    system: str
    differences: NDArray[numpy.int64]
    hypothesis_tokens: int
    reference_tokens: int

    @property
    def mean(self) -> float:
        """Return the mean difference."""
        return float(self.differences.mean())

    @property
    def deviation(self) -> float:
        """Return the standard deviation of the differences, these sentences being all there are."""
        return float(self.differences.std())

    @property
    def ratio(self) -> float | None:
        """Return hypothesis tokens per reference token; None where references are empty."""
        return self.hypothesis_tokens / self.reference_tokens if self.reference_tokens else None

    def share(self, sign: int) -> float:
        """Return the share of the sentences that are shorter (-1), equal (0) or longer (1)."""
        return float((numpy.sign(self.differences) == sign).mean())

    def shares(self, most: int) -> list[float]:
        """Return the shares of -most, ..., most; what lies beyond counts at the ends."""
        # Shifted, as bins are counted from 0.
        clipped = numpy.clip(self.differences, -most, most) + most
        counts = numpy.bincount(clipped, minlength=2 * most + 1)
        return [float(count) / len(clipped) for count in counts]


def length_differences(evaluation: Evaluation) -> list[LengthDifferences]:
    """Return the length differences of each system."""
    reference = evaluation.reference.lengths
    return [
        LengthDifferences(
            name, tokens.lengths - reference, int(tokens.lengths.sum()), int(reference.sum())
        )
        for name, tokens in zip(evaluation.names, evaluation.tokens, strict=True)
    ]


def reach(systems: Sequence[LengthDifferences]) -> int:
    """Return how far from zero to look for nearly all sentences of each system."""
    # Nearly all: a few runaway translations should not squeeze the rest.
    ends = [float(numpy.quantile(numpy.abs(system.differences), _SHOWN)) for system in systems]
    return int(min(_MOST, max(_FEWEST, *map(numpy.ceil, ends))))


def lengths_section(evaluation: Evaluation) -> Section:
    """Return the distribution of length differences (the thesis' figure 4.15a)."""
    systems = length_differences(evaluation)
    most = reach(systems)
    title = "Length of the translations against the references"

    def draw(path: Path) -> None:
        draw_steps(
            [system.system for system in systems],
            [[100.0 * share for share in system.shares(most)] for system in systems],
            path,
            title=title,
            x_label="hypothesis length − reference length (tokens)",
            y_label="share of the sentences (percent)",
        )

    text = (
        "The difference is the number of tokens of the translation minus that of the reference, "
        "sentence by sentence; the length ratio is all tokens of the translations by all of the "
        f"references. {evaluation.describe_tokens()}"
    )
    caption = (
        "Share of the sentences by how much longer (right) or shorter (left) the translation is "
        "than the reference; the ends hold what lies beyond."
    )
    rows: list[list[Cell]] = [
        [
            system.system, system.hypothesis_tokens, system.ratio, system.mean, system.deviation,
            *(100.0 * system.share(sign) for sign in (-1, 0, 1)),
        ]
        for system in systems
    ]  # fmt: skip
    table = Table(
        "Length differences (tokens) and the sentences that are shorter, equal, longer (percent)",
        ["system", "tokens", "ratio", "mean", "deviation", "shorter", "equal", "longer"],
        rows,
    )
    values = {
        "lengths": [_values(system) for system in systems],
        **evaluation.settings,
    }
    picture = Picture("length-differences", caption, draw)
    return Section("lengths", title, text, [table], [picture], values, evaluation.corpus)


def _values(system: LengthDifferences) -> dict[str, Any]:
    kinds, counts = numpy.unique(system.differences, return_counts=True)
    return {
        "system": system.system,
        "hypothesis_tokens": system.hypothesis_tokens,
        "reference_tokens": system.reference_tokens,
        "length_ratio": system.ratio,
        "mean_difference": system.mean,
        "deviation": system.deviation,
        "share_shorter": system.share(-1),
        "share_equal": system.share(0),
        "share_longer": system.share(1),
        "sentences_by_difference": {
            str(kind): count for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True)
        },
    }
