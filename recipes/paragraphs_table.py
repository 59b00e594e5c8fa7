"""The texts and the table of recipes/paragraphs.sh: several sentences per line.

python -m recipes.paragraphs_table join TEXT LANGUAGE SENTENCES PREFIX
    Write PREFIX.LANGUAGE, the test split in TEXT with SENTENCES sentences per line, and
    PREFIX.sentences.LANGUAGE, the same with one sentence per line. A last, partial line is dropped.
python -m recipes.paragraphs_table score ARCH=FOLDER... --reference FILE --sentences N --out PREFIX
    Score FOLDER/{whole,split,sentences}.txt, after joining N lines each of the last one.
    Writes PREFIX.md and PREFIX.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmtgrid.base.io.text import find_text, read_lines
from nmtgrid.metrics.quality import bleu
from recipes.tables import write_lines, write_table

FORMS = {
    "whole": "lines as they are, translated whole (`--max-source 512`)",
    "split": "lines as they are (default)",
    "sentences": "a sentence in a line, joined afterwards",
}


def join(text: Path, language: str, count: int, prefix: Path) -> None:
    """Write the test split with `count` sentences per line, and with one per line."""
    sentences = [
        " ".join(line.split()) for line in read_lines(find_text(str(text / "test"), language))
    ]
    sentences = sentences[: len(sentences) // count * count]
    for path, content in {
        f"{prefix}.{language}": joined(sentences, count),
        f"{prefix}.sentences.{language}": sentences,
    }.items():
        write_lines(Path(path), content)


def joined(lines: Sequence[str], count: int) -> list[str]:
    """Join each group of `count` lines into one."""
    return [" ".join(lines[start : start + count]) for start in range(0, len(lines), count)]


def score(named: Sequence[str], reference: Path, count: int) -> list[dict[str, Any]]:
    """Return a row for each architecture and form, with lower-cased BLEU of whole lines."""
    references = list(read_lines(reference))
    rows: list[dict[str, Any]] = []
    for text in named:
        architecture, _, folder = text.partition("=")
        for form, meaning in FORMS.items():
            lines = list(read_lines(Path(folder, f"{form}.txt")))
            lines = joined(lines, count) if form == "sentences" else lines
            quality = bleu(lines, references, lowercase=True)
            rows.append(
                {
                    "architecture": architecture,
                    "input": meaning,
                    "bleu": quality.value,
                    "words": sum(len(line.split()) for line in lines),
                    "reference_words": sum(len(line.split()) for line in references),
                    "signature_bleu": quality.signature,
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    joining = commands.add_parser("join")
    joining.add_argument("text", type=Path)
    joining.add_argument("language")
    joining.add_argument("count", type=int)
    joining.add_argument("prefix", type=Path)
    scoring = commands.add_parser("score")
    scoring.add_argument("named", nargs="+", metavar="ARCH=FOLDER")
    scoring.add_argument("--reference", type=Path, required=True)
    scoring.add_argument("--sentences", type=int, required=True)
    scoring.add_argument("--out", required=True)
    options = parser.parse_args()
    if options.command == "join":
        join(options.text, options.language, options.count, options.prefix)
        return
    write_table(score(options.named, options.reference, options.sentences), options.out)


if __name__ == "__main__":
    main()
