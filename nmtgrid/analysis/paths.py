"""READ/WRITE paths of online systems over word alignments: delays, lagging, anticipation.

A target word is anticipated if it was written before some source word aligned with it had been
read; the anticipation rate is the share of such words among all that were written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.alignment import soft_alignments
from nmtgrid.analysis.alignment.pairs import Advance, align_words
from nmtgrid.analysis.alignment.pharaoh import read_links
from nmtgrid.analysis.alignment.soft_alignments import join_units, words_of_units
from nmtgrid.analysis.alignment.symmetry import Heuristic, Links
from nmtgrid.base.errors import InputError
from nmtgrid.metrics.latency import sentence_latency
from nmtgrid.metrics.words import word_delays
from nmtgrid.search.traces import Trace, read_traces
from nmtgrid.text.bpe import JOINER

Unit = Literal["token", "word"]
"""Subword units, or the tokenised words that they make: traces do not have raw ones."""
Words = list[list[str]]


@dataclasses.dataclass(frozen=True)
class WrittenPath:
    """A line's units on both sides, and how many source units had been read for each target one.

    `links` are of units, `shares` [T, S] what the model looked at; None where not known.
    """

    line: int
    source: Sequence[str]
    target: Sequence[str]
    delays: Sequence[int]
    links: Links | None = None
    shares: NDArray[numpy.float64] | None = None

    @property
    def anticipated(self) -> list[int] | None:
        """Return the target units written before a source unit aligned with them was read."""
        if self.links is None:
            return None
        return sorted({t for s, t in self.links if s >= self.delays[t]})

    @property
    def aligned(self) -> int:
        """Return how many target units have a link."""
        return len({t for _, t in self.links or []})


@dataclasses.dataclass(frozen=True)
class SystemPaths:
    """A system's paths line by line, and the average lagging of each: NaN where there is none."""

    name: str
    path: Path
    paths: Sequence[WrittenPath]
    lagging: NDArray[numpy.float64]

    @property
    def written(self) -> int:
        """Return the number of target units."""
        return sum(len(one.target) for one in self.paths)

    @property
    def mean_delay(self) -> float | None:
        """Return how many source units had been read, on average over all target units."""
        total = sum(sum(one.delays) for one in self.paths)
        return total / self.written if self.written else None

    @property
    def mean_lagging(self) -> float | None:
        """Return AL, averaged over the lines that have it."""
        known = self.lagging[~numpy.isnan(self.lagging)]
        return float(known.mean()) if len(known) else None

    @property
    def anticipation(self) -> float | None:
        """Return the share of the target units that were anticipated, None without links."""
        found = [one.anticipated for one in self.paths]
        if any(one is None for one in found) or not self.written:
            return None
        return sum(len(one or []) for one in found) / self.written

    @property
    def unaligned(self) -> float | None:
        """Return the share of the target units without a link, None where no links are known."""
        if any(one.links is None for one in self.paths) or not self.written:
            return None
        return 1.0 - sum(one.aligned for one in self.paths) / self.written


def read_traced(files: Mapping[str, Path]) -> dict[str, list[Trace]]:
    """Return the traces of all systems.

    Raises InputError for traces without `reads`, and for systems whose lines differ.
    """
    found: dict[str, list[Trace]] = {}
    for name, path in files.items():
        held = found[name] = list(read_traces(path))
        first = next(iter(found.values()))
        for place, trace in enumerate(held, start=1):
            if trace.reads is None and trace.target:
                raise InputError(
                    "there are no `reads` in it: nobody knows when what was written.",
                    "Write traces with `nmtgrid decode --stream --traces FILE`.",
                    path=path,
                    line=place,
                )
        if len(held) != len(first):
            raise InputError(
                f"it has {len(held):,} lines, but {next(iter(files.values()))} has {len(first):,}.",
                "Give traces of the same text.",
                path=path,
            )
        for place, (trace, other) in enumerate(zip(held, first, strict=True), start=1):
            if (trace.line, join_units(trace.source)) != (other.line, join_units(other.source)):
                raise InputError(
                    f"its source is not that of {next(iter(files.values()))}.",
                    "Give traces of the same text, preprocessed alike.",
                    path=path,
                    line=place,
                )
    return found


def as_paths(
    files: Mapping[str, Path],
    traced: Mapping[str, Sequence[Trace]],
    links: Mapping[str, Sequence[Links]] | None,
    unit: Unit,
) -> list[SystemPaths]:
    """Return the paths, with links of words for each system, or with what models looked at."""
    found = []
    for name, held in traced.items():
        known = None if links is None else links[name]
        paths = [
            _path(trace, None if known is None else known[place], unit)
            for place, trace in enumerate(held)
        ]
        lagging = sentence_latency(
            [one.delays for one in paths], [len(one.source) for one in paths]
        ).al
        found.append(SystemPaths(name, files[name], paths, lagging))
    return found


def learned_links(
    traced: Mapping[str, Sequence[Trace]],
    more: tuple[Words, Words],
    heuristic: Heuristic,
    advance: Advance,
) -> tuple[dict[str, Sequence[Links]], str]:
    """Return the links of words of each system by the own aligner, and what it did.

    It learns from all systems' translations together, and from `more` text.
    """
    from nmtgrid.analysis.alignment.aligner import AlignerSettings

    source = [join_units(trace.source) for held in traced.values() for trace in held]
    target = [join_units(trace.target) for held in traced.values() for trace in held]
    pairs = align_words(source, target, more, AlignerSettings(heuristic=heuristic), advance)
    found: dict[str, Sequence[Links]] = {}
    start = 0
    for name, held in traced.items():
        found[name] = pairs.links[start : start + len(held)]
        start += len(held)
    return found, pairs.told


def given_links(
    traced: Mapping[str, Sequence[Trace]], files: Mapping[str, Path]
) -> dict[str, Sequence[Links]]:
    """Return each system's links of words from its Pharaoh file. Raises InputError for bad ones."""
    return {
        name: read_links(
            files[name],
            [(len(join_units(one.source)), len(join_units(one.target))) for one in held],
        )
        for name, held in traced.items()
    }


def _path(trace: Trace, links: Links | None, unit: Unit) -> WrittenPath:
    """Return a trace as a path; `links` are of words (None: those of the trace's own shares)."""
    source, target = words_of_units(trace.source), words_of_units(trace.target)
    # The end symbols count on neither side.
    reads = [min(read, len(trace.source)) for read in (trace.reads or [])[: len(target)]]
    shown = soft_alignments.by_words(trace) if unit == "word" else trace
    if unit == "word":
        sizes = [source.count(word) for word in range(len(shown.source))]
        reads = word_delays(trace.reads or [], sizes, trace.target, JOINER) if target else []
    elif links is not None:
        links = _of_units(links, source, target)
    shares = soft_alignments.shares(shown)
    return WrittenPath(
        trace.line,
        shown.source,
        shown.target,
        reads,
        links,
        None if shares is None or links is not None else shares[:-1, :-1],
    )


def _of_units(links: Links, source: Sequence[int], target: Sequence[int]) -> Links:
    """Return links of words as links of their units, spread over these in order.

    `source` and `target` have the number of each unit's word.
    """
    places: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
    for found, numbers in zip(places, (source, target), strict=True):
        for unit, word in enumerate(numbers):
            found.setdefault(word, []).append(unit)
    spread: set[tuple[int, int]] = set()
    for word, other in links:
        read, written = places[0][word], places[1][other]
        for place, unit in enumerate(written):
            first = place * len(read) // len(written)
            last = -(-(place + 1) * len(read) // len(written))
            spread.update((s, unit) for s in read[first : max(last, first + 1)])
    return sorted(spread)
