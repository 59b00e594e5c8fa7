"""Which sections a report has: what the given files hold decides."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from nmtgrid.analysis import (
    curves_section,
    exit_section,
    exits,
    latency_section,
    path_section,
    paths,
    tuning_section,
)
from nmtgrid.analysis.alignment import models as alignment_models
from nmtgrid.analysis.alignment.pairs import Advance, read_pairs, read_words
from nmtgrid.analysis.exit_results import read_tuned
from nmtgrid.analysis.latency_results import read_results
from nmtgrid.analysis.quality import buckets, difficulty, lengths
from nmtgrid.analysis.quality import compare as compare_section
from nmtgrid.analysis.quality.bucketing import Property
from nmtgrid.analysis.quality.evaluation import read_evaluation
from nmtgrid.analysis.section import Section
from nmtgrid.analysis.systems import is_traces, named_files, read_text
from nmtgrid.analysis.training_curves import read_runs
from nmtgrid.base.io.atomic import split_label
from nmtgrid.search.traces import Trace, read_traces

_EXAMPLES = 3
"""Lines that are drawn where none are chosen."""


@dataclasses.dataclass(frozen=True)
class Given:
    """The files of a report, and how they are to be read; names as in `analyze report`."""

    systems: Sequence[str]
    reference: Path | None
    source: Path | None
    alignments: Path | None
    train: tuple[Path, Path] | None
    bootstrap: int
    lines: Sequence[int]
    latency: Sequence[str]
    depth: Sequence[str]
    curves: Sequence[str]
    tokenize: str
    lowercase: bool

    @functools.cached_property
    def files(self) -> dict[str, Path]:
        """Return the systems' files by name."""
        return named_files(self.systems)

    def traced(self, has: Callable[[Trace], bool]) -> dict[str, Path]:
        """Return the systems whose traces hold something."""
        return {
            name: path
            for name, path in self.files.items()
            if is_traces(path) and any(has(trace) for trace in self.traces[path])
        }

    @functools.cached_property
    def traces(self) -> Mapping[Path, Sequence[Trace]]:
        """Return the traces in the systems' files."""
        return {path: list(read_traces(path)) for path in self.files.values() if is_traces(path)}


def sections(given: Given, advance: Advance) -> Iterator[Section]:
    """Yield the sections that `given` has material for; `advance` tells of learning alignments."""
    if given.systems and given.reference is not None:
        yield from _of_texts(given, given.reference, advance)
    if given.latency:
        named = map(split_label, given.latency)
        found = [one for name, path in named for one in read_results(path, name)]
        yield latency_section.section(found)
    if online := given.traced(lambda one: one.reads is not None):
        yield _paths(given, online, advance)
    if given.depth:
        named = map(split_label, given.depth)
        yield tuning_section.section([read_tuned(path, name) for name, path in named])
    if early := given.traced(lambda one: one.exits is not None):
        references = None if given.reference is None else read_text(given.reference)
        held = [
            exits.of_traces(name, given.traces[path], path, given.lines, _EXAMPLES)
            for name, path in early.items()
        ]
        yield exit_section.section(held, references)
    if aligned := given.traced(lambda one: one.alignment is not None):
        wanted = alignment_models.Wanted(given.lines)
        yield alignment_models.section(alignment_models.read_models(aligned, wanted), wanted)
    if given.curves:
        curves_section.check_drawable(len(given.curves))
        yield curves_section.section(read_runs([split_label(one) for one in given.curves]))


def _of_texts(given: Given, reference: Path, advance: Advance) -> Iterator[Section]:
    """Yield what takes translations and references, and difficulty where there is a source."""
    evaluation = read_evaluation(
        given.systems, reference, given.source, given.tokenize, given.lowercase
    )
    yield compare_section.section(evaluation, compare_section.Wanted(bootstrap=given.bootstrap))
    by: list[Property] = ["reference-length"]
    if given.source is not None:
        by.append("length-ratio")
    yield buckets.section(evaluation, by)
    yield lengths.section(evaluation)
    if given.source is not None:
        lines = (evaluation.source_lines or [], evaluation.reference_lines)
        pairs = read_pairs(
            given.source, reference, given.alignments, given.train, advance=advance, lines=lines
        )
        yield difficulty.section(pairs, difficulty.measure(pairs), evaluation)


def _paths(given: Given, online: Mapping[str, Path], advance: Advance) -> Section:
    traced = {name: given.traces[path] for name, path in online.items()}
    more = ([], []) if given.train is None else read_words(*given.train)
    links, told = paths.learned_links(traced, more, "grow-diag-final-and", advance)
    held = paths.as_paths(online, traced, links, "token")
    references = None if given.reference is None else read_text(given.reference)
    return path_section.section(held, given.lines, "token", told, references)
