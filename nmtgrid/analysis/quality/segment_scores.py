"""Sentence scores of all systems by another program, such as COMET.

They are read from text, with a number for each system on every line, or from the JSON of
`comet-score --to_json`, and compared by their means.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy

from nmtgrid.analysis.quality.evaluation import MEASURE_KINDS, Evaluation
from nmtgrid.analysis.systems import check_lengths, read_text, stem
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.base.io.atomic import split_label
from nmtgrid.base.io.records import Record, convert, read_json
from nmtgrid.base.spans import plural
from nmtgrid.metrics.ngrams import Counts

_SIMPLE = "Give it with the scores of all systems on each line, separated by spaces or tabs."


class _Segment(Record):
    """A sentence in COMET's file: the translation and its score."""

    mt: str
    COMET: float


def with_segment_scores(evaluation: Evaluation, texts: Sequence[str]) -> Evaluation:
    """Return the evaluation with the scores in the files given as `NAME=FILE` or `FILE`.

    Raises ConfigError for a name that is taken, InputError for invalid or missing scores.
    """
    scores: dict[str, list[Counts]] = {}
    # Tables have a column of this name.
    taken = {"system", *MEASURE_KINDS, *(kind.title.lower() for kind in MEASURE_KINDS.values())}
    for text in texts:
        label, path = split_label(text)
        is_json = path.suffix == ".json"
        name = label or ("COMET" if is_json else stem(path))
        if name.lower() in taken:
            raise ConfigError(
                f"`--segment-scores`: the name `{name}` is taken.", f"Name it: `NAME={path}`."
            )
        taken.add(name.lower())
        read = _read_json if is_json else _read_lines
        columns = numpy.array(read(path, evaluation), dtype=float)
        scores[name] = [numpy.stack([own, numpy.ones_like(own)], axis=1) for own in columns]
    return dataclasses.replace(evaluation, segment_scores=scores)


def _read_lines(path: Path, evaluation: Evaluation) -> list[list[float]]:
    """Return the numbers of each system."""
    lines, count = read_text(path), len(evaluation.systems)
    first = evaluation.systems[0]
    check_lengths({first.path: len(first.lines), path: len(lines)})
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = [float(word) for word in line.split()]
        except ValueError:
            row = []
        if len(row) != count or not all(map(math.isfinite, row)):
            raise InputError(
                f"`{line.strip()[:40]}` is not {plural(count, 'number')}, one for each system.",
                _SIMPLE,
                path=path,
                line=number,
            )
        rows.append(row)
    return [list(column) for column in zip(*rows, strict=True)]


def _read_json(path: Path, evaluation: Evaluation) -> list[list[float]]:
    """Return COMET's scores of each system; the file must have its translations too."""
    try:
        files = convert(read_json(path), dict[str, list[_Segment]])
    except ValueError as fault:
        raise InputError(
            f"it is not a file of `comet-score --to_json`: {fault}.", _SIMPLE, path=path
        ) from fault
    scored: dict[str, Sequence[_Segment]] = dict(files)
    return [
        [
            segment.COMET
            for segment in _of_system(path, system.name, system.lines, scored, evaluation)
        ]
        for system in evaluation.systems
    ]


def _of_system(
    path: Path,
    name: str,
    lines: Sequence[str],
    files: Mapping[str, Sequence[_Segment]],
    evaluation: Evaluation,
) -> Sequence[_Segment]:
    """Return the scores of the file whose translations are those of a system."""
    expected = [line.strip() for line in lines]
    # The first line that differs, in the file where it comes latest.
    differs, nearest = 0, ""
    for file, segments in files.items():
        translations = [evaluation.lower(segment.mt).strip() for segment in segments]
        if translations == expected:
            return segments
        pairs = enumerate(zip(translations, expected, strict=False), start=1)
        line = next((n for n, pair in pairs if pair[0] != pair[1]), len(expected) + 1)
        if line > differs:
            differs, nearest = line, file
    similar = f": line {differs} of {nearest}, the most similar, is another" if nearest else ""
    raise InputError(
        f"it has no scores of the translations of `{name}`{similar}.",
        "Score the same files that you compare.",
        path=path,
    )
