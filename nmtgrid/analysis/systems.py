"""The translations to analyse: plain text of any system, or traces of `nmtgrid decode`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from nmtgrid.analysis.alignment.soft_alignments import join_units
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.base.io.atomic import folder_name, name_faults, split_label
from nmtgrid.base.io.text import SUFFIXES, read_lines
from nmtgrid.base.spans import plural
from nmtgrid.search.traces import Trace, read_traces
from nmtgrid.text.moses import unescape

_KINDS = (*SUFFIXES[1:], ".txt", ".jsonl", ".traces")


@dataclasses.dataclass(frozen=True)
class SystemOutput:
    """A system's name, its translations line by line, their file, and the source if known."""

    name: str
    path: Path
    lines: Sequence[str]
    source_lines: Sequence[str] | None = None


def named_files(texts: Sequence[str]) -> dict[str, Path]:
    """Return the files by name; one without a name is named after its file, without suffixes.

    Files of the same name are preceded by their folders (`told_apart`). Raises ConfigError for a
    system named twice.
    """
    files = [split_label(text) for text in texts]
    names = told_apart(
        [label or stem(path) or folder_name(path) for label, path in files],
        [None if label else path for label, path in files],
    )
    named = [(name, path) for name, (_, path) in zip(names, files, strict=True)]
    if faults := name_faults(named):
        raise ConfigError(faults)
    return dict(named)


def told_apart(names: Sequence[str], paths: Sequence[Path | None]) -> list[str]:
    """Return the names of files, equal ones with as many parent folders as distinguish them.

    A name without a path stays as it is.
    """
    trails = [
        (*(() if path is None else Path(os.path.abspath(path)).parent.parts[1:]), name)
        for name, path in zip(names, paths, strict=True)
    ]
    apart = []
    for trail in trails:
        others = [other for other in trails if other != trail]
        count = 1
        while count < len(trail) and any(other[-count:] == trail[-count:] for other in others):
            count += 1
        apart.append("/".join(trail[-count:]))
    return apart


def stem(path: Path) -> str:
    """Return a file's name without the suffixes of its type."""
    name = path.name
    # `system.txt.gz` is called `system`.
    while (end := Path(name).suffix.lower()) in _KINDS:
        name = name[: -len(end)]
    return name or path.name


def read_systems(texts: Sequence[str], others: Mapping[Path, int]) -> list[SystemOutput]:
    """Return the systems given as `NAME=FILE` or `FILE`.

    A file may be plain or compressed; one ending in .jsonl contains traces, whose `text` is used.
    Raises ConfigError for a name given twice, InputError for an empty file, for a file of traces
    with a line left out, and for files of different lengths (also of `others`, by their lines).
    """
    systems = [read_system(name, path) for name, path in named_files(texts).items()]
    lengths = {system.path: len(system.lines) for system in systems}
    check_lengths({**lengths, **others})
    return systems


def read_text(path: Path) -> list[str]:
    """Return the lines of a text file. Raises InputError for a file without any."""
    lines = list(read_lines(path))
    if not lines:
        raise InputError("it is empty.", "Give a file with one line per sentence.", path=path)
    return lines


def read_system(name: str, path: Path) -> SystemOutput:
    """Return the translations in a text file or, if it ends in .jsonl, in a file of traces.

    Traces also have the source, as tokenised words.
    """
    if not is_traces(path):
        return SystemOutput(name, path, read_text(path))
    lines, source_lines = [], []
    for line, trace in enumerate(read_traces(path), start=1):
        # A missing line would shift all that follow against the reference.
        if trace.line != line:
            raise InputError(
                f"the trace of line {trace.line} is in the place of line {line}.",
                "Give the whole file, as `nmtgrid decode --traces FILE` wrote it.",
                path=path,
                line=line,
            )
        lines.append(trace.text)
        source_lines.append(joined_source(trace))
    if not lines:
        raise InputError("it is empty.", "Give a file with one trace per sentence.", path=path)
    return SystemOutput(name, path, lines, source_lines)


def is_traces(path: Path) -> bool:
    """Return whether a file has the suffix of traces: .jsonl, plain or compressed."""
    return any(path.name.lower().endswith(f".jsonl{suffix}") for suffix in SUFFIXES)


def check_lengths(lengths: dict[Path, int]) -> None:
    """Raise InputError unless all files have the same number of lines."""
    if len(set(lengths.values())) <= 1:
        return
    first, count = next(iter(lengths.items()))
    # The first that differs; the message says where the shorter one ends.
    other, length = next((path, n) for path, n in lengths.items() if n != count)
    raise InputError(
        f"it has {plural(length, 'line')}, but {first} has {count:,}.",
        "Line n of each file must belong to line n of the others.",
        path=other,
        line=min(length, count) + 1,
    )


def source_mismatches(
    sources: Mapping[str, Sequence[str]], expected: Sequence[str] | None = None
) -> list[str]:
    """Return a warning for each system whose traces have another source in most lines.

    `sources` are the source lines by system; they are compared with the `expected` ones, or else
    with those of the first system.
    """
    letters = {name: [*map(_letters, lines)] for name, lines in sources.items()}
    if expected is not None:
        first, others = "the given source", [*map(_letters, expected)]
    elif letters:
        name, others = next(iter(letters.items()))
        first = f"that of `{name}`"
    warnings = []
    for name, lines in letters.items():
        count = sum(line != other for line, other in zip(lines, others, strict=True))
        if 2 * count > len(lines):
            warnings.append(
                f"The source of `{name}` differs from {first} in {count:,} of {len(lines):,} "
                "lines: are these translations of the same split of the same data?"
            )
    return warnings


def _letters(line: str) -> str:
    """Return the letters and digits of a source line: they do not depend on the tokeniser."""
    return "".join(filter(str.isalnum, unescape(line).lower()))


def joined_source(trace: Trace) -> str:
    """Return the source of a trace as tokenised words between spaces."""
    return " ".join(join_units(trace.source))


def corpus_title(data: Path, languages: Sequence[str], split: str) -> str:
    """Return the title of a split: its dataset's folder, the languages, its own name."""
    # `runs/toy/data` is called `toy`.
    name = data.parent.name if data.name == "data" and data.parent.name else data.name
    return f"{' '.join([name, '-'.join(languages)]).strip()}, {split}"


def shared_corpus(titles: Iterable[str]) -> str:
    """Return the corpus that all results name, or nothing if they differ."""
    names = set(titles)
    return names.pop() if len(names) == 1 else ""
