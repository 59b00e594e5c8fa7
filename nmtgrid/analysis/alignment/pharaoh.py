"""Word alignments as text: `i-j` for each link, source word first, from 0 (the Pharaoh format).

Gold links may be only possible ones, `i?j` or `ipj`; the others are sure.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from nmtgrid.base.errors import InputError
from nmtgrid.base.io.text import open_writer, read_lines
from nmtgrid.base.spans import plural

Links = list[tuple[int, int]]
"""(source word, target word), from 0, in order."""
Heuristic = Literal[
    "grow-diag-final-and", "grow-diag", "intersection", "union", "forward", "backward"
]

_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def symmetrise(
    forward: Iterable[tuple[int, int]], backward: Iterable[tuple[int, int]], heuristic: Heuristic
) -> Links:
    """Return the links that the heuristic makes from those of two directions.

    `grow-diag` begins with the links that both have and adds, as long as it can, links of either
    that touch one it has (corners count) and have a word without link; `grow-diag-final-and` then
    adds links of the first, then the second, if both of their words have none.
    """
    first, second = set(forward), set(backward)
    # Links that both directions agree on are mostly right: all others grow from them.
    links = first & second
    sets = {"forward": first, "backward": second, "union": first | second, "intersection": links}
    if heuristic in sets:
        return sorted(sets[heuristic])
    sources, targets = {i for i, _ in links}, {j for _, j in links}

    def add(i: int, j: int) -> None:
        links.add((i, j))
        sources.add(i)
        targets.add(j)

    # Sorted, so that the order of links in the two sets does not matter.
    candidates, count = sorted((first | second) - links), -1
    # After a pass without a new link no later one would add any.
    while len(candidates) != count:
        count, left = len(candidates), []
        for i, j in candidates:
            is_free = i not in sources or j not in targets
            if is_free and any((i + x, j + y) in links for x, y in _NEIGHBOURS):
                add(i, j)
            else:
                left.append((i, j))
        candidates = left
    if heuristic == "grow-diag-final-and":
        for i, j in (*sorted(first), *sorted(second)):
            if i not in sources and j not in targets:
                add(i, j)
    return sorted(links)


_LINK = re.compile(r"(\d{1,9})([-?p])(\d{1,9})", re.ASCII)


@dataclasses.dataclass(frozen=True)
class GoldLinks:
    """Manually annotated links of one pair; `possible` includes the `sure` ones."""

    sure: Links
    possible: Links


@dataclasses.dataclass(frozen=True)
class AlignmentErrorRate:
    """Error rate, precision (of possible links) and recall (of sure links) over a corpus.

    aer = 1 - (|A and S| + |A and P|) / (|A| + |S|) (Och and Ney 2003); f1 is of the sure links.
    """

    aer: float
    precision: float
    recall: float
    f1: float
    links: int
    sure: int


def to_text(links: Iterable[tuple[int, int]]) -> str:
    return " ".join(f"{i}-{j}" for i, j in links)


def write_links(path: Path, lines: Iterable[Iterable[tuple[int, int]]]) -> None:
    """Write a line for each pair."""
    with open_writer(path) as file:
        for links in lines:
            file.write(f"{to_text(links)}\n".encode())


def read_links(path: Path, sizes: Sequence[tuple[int, int]]) -> list[Links]:
    """Return the links of each pair; `sizes` are the numbers of source and target words.

    Raises InputError, with line and link, for what is not a sure link or points outside the
    sentence, and for a file that does not have a line for each pair.
    """
    return [gold.sure for gold in _read(path, sizes, "-")]


def read_gold(path: Path, sizes: Sequence[tuple[int, int]]) -> list[GoldLinks]:
    """Return sure and possible links of each pair. Raises InputError as `read_links` does."""
    return _read(path, sizes, "-?p")


def error_rate(alignments: Sequence[Links], gold: Sequence[GoldLinks]) -> AlignmentErrorRate:
    """Return the alignment error rate of links against gold ones, counted over all pairs.

    If neither side has any links the rate is 0.
    """
    links = sure = in_sure = in_possible = 0
    for own, true in zip(alignments, gold, strict=True):
        # A link that a file names twice counts once.
        unique = set(own)
        links += len(unique)
        sure += len(true.sure)
        in_sure += len(unique.intersection(true.sure))
        in_possible += len(unique.intersection(true.possible))
    total = links + sure
    return AlignmentErrorRate(
        aer=1.0 - (in_sure + in_possible) / total if total else 0.0,
        precision=in_possible / links if links else 1.0,
        recall=in_sure / sure if sure else 1.0,
        f1=2.0 * in_sure / total if total else 1.0,
        links=links,
        sure=sure,
    )


def _read(path: Path, sizes: Sequence[tuple[int, int]], signs: str) -> list[GoldLinks]:
    pairs: list[GoldLinks] = []
    count = 0
    for count, line in enumerate(read_lines(path), start=1):
        if count <= len(sizes):
            pairs.append(_parsed(line, sizes[count - 1], signs, path, count))
    if count != len(sizes):
        raise InputError(
            f"it has {plural(count, 'line')} for {plural(len(sizes), 'sentence pair')}.",
            "Line n must contain the links of pair n (an empty line for none).",
            path=path,
            line=min(count, len(sizes)) + 1,
        )
    return pairs


def _parsed(line: str, size: tuple[int, int], signs: str, path: Path, number: int) -> GoldLinks:
    sure, possible = set(), set()
    for text in line.split():
        match = _LINK.fullmatch(text)
        if match is None or match[2] not in signs:
            raise InputError(
                f"`{text[:40]}` is not a link.",
                "Links are `i-j`: source word, target word, from 0"
                + (" (possible ones `i?j` or `ipj`)." if "?" in signs else "."),
                path=path,
                line=number,
            )
        link = int(match[1]), int(match[3])
        for word, length, side in zip(link, size, ("source", "target"), strict=True):
            if word >= length:
                raise InputError(
                    f"the link `{text}` points outside the sentence: its {side} has "
                    + (f"{length} words, 0 to {length - 1}." if length else "no words."),
                    "Words are separated by spaces and counted from 0, source first. Do the links "
                    "belong to another text, or is the target first?",
                    path=path,
                    line=number,
                )
        possible.add(link)
        # A sure link is a possible one too (Och and Ney 2003).
        if match[2] == "-":
            sure.add(link)
    return GoldLinks(sorted(sure), sorted(possible))
