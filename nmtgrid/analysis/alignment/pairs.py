"""Sentence pairs whose words are aligned: by a Pharaoh file, or by the own aligner.

Words are what spaces separate, so that a Pharaoh file and its text fit together.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from nmtgrid.analysis.alignment.aligner import AlignerSettings, align
from nmtgrid.analysis.alignment.pharaoh import read_links
from nmtgrid.analysis.alignment.symmetry import Links
from nmtgrid.analysis.systems import check_lengths, read_text
from nmtgrid.base.errors import ConfigError

Advance = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class AlignedPairs:
    """The words of both sides, their links, and in a sentence where the links come from."""

    source: Sequence[Sequence[str]]
    target: Sequence[Sequence[str]]
    links: Sequence[Links]
    told: str
    tensions: tuple[float, float] | None = None

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Return the source and target words of each pair."""
        return sizes(self.source, self.target)

    @property
    def unaligned(self) -> float:
        """Return the share of target words without a link."""
        words = sum(map(len, self.target))
        linked = sum(len({target for _, target in links}) for links in self.links)
        return 1.0 - linked / words if words else 0.0


def read_pairs(
    source: Path,
    target: Path,
    alignments: Path | None = None,
    train: tuple[Path, Path] | None = None,
    settings: AlignerSettings | None = None,
    advance: Advance = lambda what, done, total: None,
    lines: tuple[Sequence[str], Sequence[str]] | None = None,
) -> AlignedPairs:
    """Return the pairs of two files with the links in `alignments`, or else with learned ones.

    `train` has more text to learn from; `lines` are those of the two files where they have been
    read already (a pipe can be read but once). Raises ConfigError for a file given as both sides,
    InputError for files of different lengths and bad links.
    """
    for one, other in ((source, target), *([train] if train else [])):
        if os.path.realpath(one) == os.path.realpath(other):
            raise ConfigError(f"{one} is given as both sides of the text.", "Give two files.")
    x, y = read_words(source, target) if lines is None else _words(source, target, *lines)
    if alignments is not None:
        found = read_links(alignments, sizes(x, y))
        return AlignedPairs(x, y, found, f"Word alignments are those of {alignments.name}.")
    more = read_words(*train) if train is not None else ([], [])
    return align_words(x, y, more, settings, advance)


def align_words(
    source: Sequence[Sequence[str]],
    target: Sequence[Sequence[str]],
    more: tuple[Sequence[Sequence[str]], Sequence[Sequence[str]]] = ([], []),
    settings: AlignerSettings | None = None,
    advance: Advance = lambda what, done, total: None,
) -> AlignedPairs:
    """Return the pairs aligned by the own aligner, which learns from them and from `more`."""
    settings = settings or AlignerSettings()
    found = align(
        [*source, *more[0]],
        [*target, *more[1]],
        settings,
        count=len(source),
        advance=advance,
    )
    told = (
        f"Word alignments were learned from {len(source) + len(more[0]):,} pairs by the own "
        "aligner (IBM model 2 that favours the diagonal, as fast-align's, "
        f"{settings.iterations} iterations), the two directions joined by {settings.heuristic}."
    )
    return AlignedPairs(source, target, found.links, told, found.tensions)


def read_words(source: Path, target: Path) -> tuple[list[list[str]], list[list[str]]]:
    """Return the words of both files. Raises InputError unless they have as many lines."""
    return _words(source, target, read_text(source), read_text(target))


def _words(
    source: Path, target: Path, x: Sequence[str], y: Sequence[str]
) -> tuple[list[list[str]], list[list[str]]]:
    check_lengths({source: len(x), target: len(y)})
    return [line.split() for line in x], [line.split() for line in y]


def sizes(
    source: Sequence[Sequence[str]], target: Sequence[Sequence[str]]
) -> list[tuple[int, int]]:
    """Return the source and target words of each pair."""
    return [(len(x), len(y)) for x, y in zip(source, target, strict=True)]
