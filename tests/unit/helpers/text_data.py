"""Datasets and pieces of a few lines of text, some without spaces; not a test itself."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtgrid.cli.app import main

CHINESE = {
    "en": [f"cat number {n} is at home ." for n in range(6)],
    "zh": [f"这是第{n}只猫，在家里。" for n in range(6)],
}
"""Lines of 11 Chinese characters, which Moses splits into four words, including punctuation."""


def text_data(folder: Path, sides: Mapping[str, Sequence[str]], *options: str) -> Path:
    """Return the dataset `folder/data`, whose splits all have the lines of `sides`, by language.

    `options` are those of `preprocess`, which drops empty lines of the training text.
    """
    source, target = sides
    data, prefix = str(folder / "data"), str(folder / "text")
    for language, lines in sides.items():
        text = "".join(f"{line}\n" for line in lines)
        Path(f"{prefix}.{language}").write_text(text, encoding="utf-8")
    languages = ["--source-lang", source, "--target-lang", target, "--max-ratio", "9"]
    files = ["--train", prefix, "--valid", prefix, "--test", prefix, "--out", data]
    assert main(["preprocess", *languages, *files, *options]) == 0
    assert main(["bpe", "learn", data, "--merges", "10"]) == 0
    return Path(data)


def foreign_pieces(lines: Sequence[str], **options: Any) -> bytes:
    """Return a model that the package SentencePiece itself learns from `lines`.

    It normalises text, unless `options` say otherwise.
    """
    import sentencepiece

    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=content, hard_vocab_limit=False,
        minloglevel=2, **{"vocab_size": 40} | options,
    )  # fmt: skip
    return content.getvalue()
