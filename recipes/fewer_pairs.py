"""Selects a subset of a parallel text, for recipes/zoo.sh.

python -m recipes.fewer_pairs N SOURCE_LANG TARGET_LANG --text PREFIX --out PREFIX
    Writes N evenly spaced pairs of the text in their order, so that the same N gives the same
    pairs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from recipes.extra_data import read
from recipes.tables import write_lines


def equal_distances(lines: Sequence[str], number: int) -> list[str]:
    """Return `number` evenly spaced lines, the first included. Raises ValueError for too few."""
    if not 0 < number <= len(lines):
        raise ValueError(f"cannot take {number:,} of {len(lines):,} pairs")
    return [lines[index * len(lines) // number] for index in range(number)]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("number", type=int, metavar="N")
    parser.add_argument("languages", nargs=2, metavar="LANG")
    parser.add_argument("--text", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()
    sides = [read(arguments.text, language) for language in arguments.languages]
    if len(sides[0]) != len(sides[1]):
        parser.error(f"the sides have {len(sides[0]):,} and {len(sides[1]):,} lines")
    try:
        kept = [equal_distances(side, arguments.number) for side in sides]
    except ValueError as error:
        parser.error(str(error))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for language, lines in zip(arguments.languages, kept, strict=True):
        write_lines(arguments.out.with_name(f"{arguments.out.name}.{language}"), lines)
    print(f"{arguments.number:,} of {len(sides[0]):,} pairs.")


if __name__ == "__main__":
    main()
