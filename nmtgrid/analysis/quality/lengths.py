"""Length differences: hypothesis length minus reference length, sentence by sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.plotting.bars import draw_steps
from nmtgrid.analysis.quality.evaluation import Evaluation
from nmtgrid.analysis.section import Picture, Section, Table

# Least and greatest number of tokens that the figure shows to each side of zero.
_FEWEST, _MOST = 5, 20
# Share of the sentences that must be within.
_SHOWN = 0.99
_TEXT = (
    "The difference is the number of tokens of the translation minus that of the reference, "
    "sentence by sentence; the length ratio is all tokens of the translations by all of the "
    "references. "
)
_CAPTION = (
    "Share of the sentences by how much longer (right) or shorter (left) the translation is than "
    "the reference; the ends include all larger differences."
)
_Differences = NDArray[numpy.int64]


def shares(differences: _Differences, most: int) -> list[float]:
    """Return the shares of -most, ..., most; larger differences count at the ends."""
    # Shifted, because bins are counted from 0.
    clipped = numpy.clip(differences, -most, most) + most
    counts = numpy.bincount(clipped, minlength=2 * most + 1)
    return [float(count) / len(clipped) for count in counts]


def reach(differences: Sequence[_Differences]) -> int:
    """Return the distance from zero that covers nearly all sentences of each system."""
    # Nearly all: a few runaway translations should not squeeze the rest.
    ends = [float(numpy.quantile(numpy.abs(own), _SHOWN)) for own in differences]
    return int(min(_MOST, max(_FEWEST, *map(numpy.ceil, ends))))


def lengths_section(evaluation: Evaluation) -> Section:
    """Return the distribution of length differences (the thesis' figure 4.15a)."""
    reference = evaluation.reference.lengths
    differences = [tokens.lengths - reference for tokens in evaluation.tokens]
    most = reach(differences)
    title = "Length of the translations against the references"

    def draw(path: Path) -> None:
        draw_steps(
            evaluation.names,
            [[100.0 * share for share in shares(own, most)] for own in differences],
            path,
            title=title,
            x_label="hypothesis length − reference length (tokens)",
            y_label="share of the sentences (percent)",
        )

    values = [
        _values(name, own, int(reference.sum()))
        for name, own in zip(evaluation.names, differences, strict=True)
    ]
    plain = ("system", "hypothesis_tokens", "length_ratio", "mean_difference", "deviation")
    table = Table(
        "Length differences (tokens) and the sentences that are shorter, equal, longer (percent)",
        ["system", "tokens", "ratio", "mean", "deviation", "shorter", "equal", "longer"],
        [
            [
                *(row[key] for key in plain),
                *(100.0 * row[f"share_{kind}"] for kind in ("shorter", "equal", "longer")),
            ]
            for row in values
        ],
    )
    return Section(
        "lengths",
        title,
        _TEXT + evaluation.describe_tokens(),
        [table],
        [Picture("length-differences", _CAPTION, draw)],
        {"lengths": values, **evaluation.settings},
        evaluation.corpus,
    )


def _values(system: str, differences: _Differences, reference_tokens: int) -> dict[str, Any]:
    """Return JSON keys; the ratio is None if references are empty."""
    kinds, counts = numpy.unique(differences, return_counts=True)
    tokens = reference_tokens + int(differences.sum())
    signs = {"shorter": -1, "equal": 0, "longer": 1}
    return {
        "system": system,
        "hypothesis_tokens": tokens,
        "reference_tokens": reference_tokens,
        "length_ratio": tokens / reference_tokens if reference_tokens else None,
        "mean_difference": float(differences.mean()),
        "deviation": float(differences.std()),
        **{
            f"share_{kind}": float((numpy.sign(differences) == sign).mean())
            for kind, sign in signs.items()
        },
        "sentences_by_difference": {
            str(kind): count for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True)
        },
    }
