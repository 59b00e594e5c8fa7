"""The model card: `README.md` of a model directory, written from `card.json` and the model.

`train` and the imports write it; `decode --data DATA --card` adds scores. The licence (`license:`
in its header) and all text below the last marker belong to the user and are preserved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtgrid.base.errors import StorageError
from nmtgrid.base.io.arrays import CHECKSUM, read_header
from nmtgrid.base.io.atomic import with_checksum, write_json, write_text
from nmtgrid.base.io.records import Count, Record, read_json, read_record
from nmtgrid.data.captioning.dataset import SOURCE_LANG
from nmtgrid.models.directory import WEIGHTS

CARD, FACTS = "README.md", "card.json"
FORMAT = 1
_BELOW = "<!-- nmtgrid writes what stands above and keeps what stands below -->"
_LICENSE = re.compile(r"^license:[^\n]*$", re.MULTILINE)
_NO_LICENSE = "license: unknown"


class ScoreRecord(Record):
    """Scores of a split by name, and the conditions of their computation.

    All other options have the values of the model's settings: `decode --card` rejects others.
    """

    split: str
    data: str
    """The dataset's folder, with the one above it: `toy/data`."""
    sentences: Count
    figures: dict[str, float]
    signatures: dict[str, str]
    beam: Count
    weights: str = "best"
    checksum: str | None = None
    """Checksum of the weights that were scored."""


class _Facts(Record):
    """The fields of `card.json`."""

    origin: str = ""
    init: str = ""
    """The model whose weights the training began with, if any."""
    pairs: dict[str, Count] = {}  # noqa: RUF012 (a new one for each record)
    training: dict[str, str] = {}  # noqa: RUF012
    scores: list[ScoreRecord] = []  # noqa: RUF012


def update_card(
    folder: Path,
    *,
    origin: str | None = None,
    init: Path | None = None,
    pairs: Mapping[str, int] | None = None,
    training: Mapping[str, str] | None = None,
    score: ScoreRecord | None = None,
) -> None:
    """Update the card of the model in `folder` with the arguments that are not None.

    `origin` says in a sentence where the model comes from, and `init` is the folder of the model
    that it was initialised from; `pairs` has the sizes of the splits, `training` facts in the order
    of their rows. A `score` replaces that of the same dataset, split, beam and weights. Raises
    StorageError if the card cannot be written.
    """
    facts = _read(folder)
    if origin is not None:
        facts.origin = origin
    if init is not None:
        facts.init = f"`{init.resolve().name}`, SHA-256 {(_checksum(init) or 'unknown')[:12]}"
    if pairs is not None:
        facts.pairs = dict(pairs)
    if training is not None:
        facts.training = dict(training)
    if score is not None:
        others = [known for known in facts.scores if _key(known) != _key(score)]
        facts.scores = [*others, score]
    scores = [score.values() for score in facts.scores]
    write_json(
        folder / FACTS, with_checksum({"format": FORMAT, **facts.values(), "scores": scores})
    )
    write_text(folder / CARD, _render(folder, facts))


def initial_weights(folder: Path) -> str:
    """Return the name of the model that `folder` was initialised from, for messages; "" if none."""
    return _read(folder).init


def _key(score: ScoreRecord) -> tuple[Any, ...]:
    return score.data, score.split, score.beam, score.weights


def _read(folder: Path) -> _Facts:
    """Return the facts of a card, empty if the card is missing or damaged."""
    try:
        return read_record(folder / FACTS, _Facts, FORMAT)
    except StorageError:
        # Training must not fail because of a card.
        return _Facts()


def _render(folder: Path, facts: _Facts) -> str:
    """Return the text of the card, including what users wrote into the existing one."""
    config, text = read_json(folder / "config.json"), read_json(folder / "text.json")["text"]
    source, target = text["source_lang"], text["target_lang"]
    # Tags by which the Hugging Face Hub finds models; pictures have no language.
    languages, task = [source, target], "translation"
    if source == SOURCE_LANG:
        languages, task = [target], "image-to-text"
    licence, below = _kept(folder / CARD)
    units = {"bpe": "BPE", "words": "words", "sentencepiece": "SentencePiece"}
    sizes = f"{config['source_vocab_size']:,} and {config['target_vocab_size']:,} types"
    rows = [
        ("architecture", config["arch"]),
        ("units", f"{units.get(text.get('subwords', 'bpe'), 'BPE')}, {sizes}"),
        ("text", "lower-cased" if text.get("lowercase") else "cased"),
        *((f"pairs of {name}", f"{count:,}") for name, count in facts.pairs.items()),
        *([("initial weights", facts.init)] if facts.init else []),
        *facts.training.items(),
    ]
    # Scores of weights that training has since replaced say nothing about the model.
    now = _checksum(folder)
    scores = [s for s in facts.scores if s.weights != "best" or s.checksum in (None, now)]
    return "\n".join(
        [
            "---", licence, "language:", *(f"- {language}" for language in languages),
            "library_name: nmtgrid", f"pipeline_tag: {task}", "---", "",
            f"# {source} to {target}", "", facts.origin or "A model of nmtgrid.", "",
            *_table(["what", "value"], rows), "", "## Scores", "", *_scores(scores), "",
            "## How to use", "", *_usage(source, target), "",
            "## Licence", "",
            "See `license:` in the header of this file; `unknown` unless it has been set.", "",
            _BELOW,
        ]
    ) + below  # fmt: skip


def _usage(source: str, target: str) -> list[str]:
    """Return the lines that show how to decode with the model, in the folder MODEL."""
    has_pictures = source == SOURCE_LANG
    text = "features.safetensors" if has_pictures else f"input.{source}"
    lines = ["```sh", f"nmtgrid decode MODEL {text} --out output.{target}", "```"]
    if has_pictures:
        return lines
    python = ["import nmtgrid", "", 'model = nmtgrid.load("MODEL")']
    return [*lines, "", "```python", *python, 'print(model.translate(["..."]))', "```"]


def _kept(path: Path) -> tuple[str, str]:
    """Return the licence line, and the user's text below the generated part."""
    try:
        # Invalid UTF-8 must not lose the text that users wrote.
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _NO_LICENSE, "\n"
    licence = _LICENSE.search(text)
    _, mark, below = text.partition(_BELOW)
    return licence.group() if licence else _NO_LICENSE, below if mark else f"\n\n{text}"


def _scores(scores: Sequence[ScoreRecord]) -> list[str]:
    if not scores:
        return ["None yet: `nmtgrid decode MODEL --data DATA --split test --card` adds them."]
    rows = [
        (
            f"{score.split} of {score.data} ({score.sentences:,})", name, f"{value:.2f}",
            f"{score.beam}", score.weights, f"`{score.signatures.get(name, '')}`",
        )
        for score in scores
        for name, value in score.figures.items()
    ]  # fmt: skip
    return _table(["split", "score", "value", "beam", "weights", "signature"], rows)


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    # A bar within a cell, as in signatures, would end the cell.
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [heading, ["---"] * len(heading), *cells]
    return [f"| {' | '.join(line)} |" for line in lines]


def _checksum(folder: Path) -> str | None:
    try:
        _, facts, _ = read_header(folder / WEIGHTS["best"])
    except StorageError:
        return None
    return facts.get(CHECKSUM)
