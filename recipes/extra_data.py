"""Adds extra training pairs to a corpus, for recipes/extra.sh.

python -m recipes.extra_data SOURCE_LANG TARGET_LANG --plain DIR --extra PREFIX --out PREFIX
    Writes the training pairs of DIR, followed by those of the extra text. Extra pairs whose source
    or target occurs in DIR's valid or test set, ignoring case and punctuation, are removed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from nmtgrid.base.io.text import find_text, read_lines
from recipes.tables import write_lines


def read(prefix: Path, language: str) -> list[str]:
    """Return the lines of PREFIX.LANGUAGE, plain or compressed."""
    return list(read_lines(find_text(str(prefix), language)))


def bare(line: str) -> str:
    """Return the lower-cased letters and digits of a line."""
    return "".join(filter(str.isalnum, line.lower()))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("languages", nargs=2, metavar="LANG")
    parser.add_argument("--plain", required=True, type=Path)
    parser.add_argument("--extra", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()
    plain, languages = arguments.plain, arguments.languages
    sides = [read(plain / "train", language) for language in languages]
    extra = [read(arguments.extra, language) for language in languages]
    scored = [
        {bare(line) for name in ("valid", "test") for line in read(plain / name, language)}
        for language in languages
    ]
    kept = [
        pair
        for pair in zip(*extra, strict=True)
        if not any(bare(line) in seen for line, seen in zip(pair, scored, strict=True))
    ]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for side, language in enumerate(languages):
        lines = [*sides[side], *(pair[side] for pair in kept)]
        path = arguments.out.with_name(f"{arguments.out.name}.{language}")
        write_lines(path, lines)
    left_out = len(extra[0]) - len(kept)
    print(
        f"{len(sides[0]):,} pairs and {len(kept):,} extra ones; {left_out:,} left out, since they "
        "repeat a sentence of the validation or test set."
    )


if __name__ == "__main__":
    main()
