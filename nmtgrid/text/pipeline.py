"""The text pipeline: raw text to token ids and back.

It is saved with the dataset and with each model, so that a model translates raw text without the
dataset.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal

from nmtgrid.base.config import to_json
from nmtgrid.base.errors import ConfigError, InputError, StorageError
from nmtgrid.base.io.atomic import digest, write_json
from nmtgrid.base.io.records import FileName, Record, convert_file, read_json
from nmtgrid.base.subword_marks import JOINER, SPACE, joined_words
from nmtgrid.text.bpe import Codes
from nmtgrid.text.moses import Moses
from nmtgrid.text.scripts import count_unspaced, is_unsegmented
from nmtgrid.text.sentencepiece_model import ENDING, SentencePieceModel
from nmtgrid.text.vocabulary import BEGIN, END, PAD, Vocabulary

FORMAT = 1
FACTS = "text.json"
FILE_PATTERNS = (FACTS, "vocab.*.txt", "*.codes", f"*{ENDING}")
"""Patterns of the files of a pipeline, for all languages and kinds of subwords."""
# The entry with the checksum of the files' checksums.
_TABLE = "table"
_AGAIN = "Restore a copy, or make the folder again."

Segmenter = Codes | SentencePieceModel
"""Segments words into units."""


@dataclasses.dataclass(frozen=True)
class TextFacts:
    """The settings of the text pipeline."""

    source_lang: FileName
    target_lang: FileName
    tokenize: Literal["moses", "none"] = "moses"
    lowercase: bool = False
    subwords: Literal["bpe", "words", "sentencepiece"] = "bpe"
    turkic_case: bool = False
    """Whether lower-casing maps I to ı and İ to i in Turkish and Azeri; False in older models."""
    joint: bool = True
    """One set of BPE codes, or one SentencePiece model, for both languages; each language has its
    own vocabulary."""

    @property
    def languages(self) -> tuple[str, str]:
        """The languages in file names: `source` and `target` if they are the same."""
        if self.source_lang == self.target_lang:
            return "source", "target"
        return self.source_lang, self.target_lang


class _File(Record):
    """`text.json`: the settings, and the checksums of settings and files."""

    text: dict[str, Any]
    sha256: dict[str, str]


@dataclasses.dataclass(eq=False)
class Side:
    """One language: raw line -> words -> units -> ids."""

    moses: Moses
    codes: Segmenter | None
    vocabulary: Vocabulary

    @property
    def mark(self) -> str:
        """The mark in units that shows where words end (see `base/subword_marks.py`)."""
        if isinstance(self.codes, SentencePieceModel):
            return SPACE
        return "" if self.codes is None else JOINER

    def units(self, words: list[str]) -> list[str]:
        """Return the units of tokenised `words`."""
        return words if self.codes is None else self.codes.segment(words)

    def join(self, units: Sequence[str]) -> str:
        """Return the words of `units`, still tokenised, separated by spaces."""
        return " ".join(joined_words(units, self.mark))

    def join_segments(self, segments: Iterable[Sequence[str]]) -> str:
        """Return the words of a line from its `segments` (the units of each), written one by one.

        Segments are separated by a space, unless this language is written without spaces.
        """
        texts = [text for text in map(self.join, segments) if text]
        has_spaces = self.moses.tokenizes or not is_unsegmented(count_unspaced(texts))
        return (" " if has_spaces else "").join(texts)

    def encode_words(self, words: list[str]) -> list[int]:
        """Return the ids of tokenised `words`, without special symbols."""
        return self.vocabulary.encode(self.units(words))

    def tokens(self, raw_line: str) -> list[str]:
        """Return the units of a raw line; [] for an empty one."""
        return self.units(self.moses.tokenize(raw_line).split())


_KINDS: dict[str, Any] = {
    "bpe": Codes, "sentencepiece": SentencePieceModel, "words": NoneType
}  # fmt: skip


class Pipeline:
    """The two sides of a translation direction."""

    def __init__(
        self,
        facts: TextFacts,
        source_vocabulary: Vocabulary,
        target_vocabulary: Vocabulary,
        codes: Segmenter | None = None,
        target_codes: Segmenter | None = None,
    ) -> None:
        """`codes` are of both languages unless there are `target_codes`; words need none."""
        if type(codes) is not _KINDS[facts.subwords]:
            raise ValueError(f"the codes are not those of {facts.subwords}")
        source, target = (
            Moses(lang, facts.tokenize == "moses", facts.lowercase, facts.turkic_case)
            for lang in (facts.source_lang, facts.target_lang)
        )
        self.facts = facts
        self.source = Side(source, codes, source_vocabulary)
        self.target = Side(target, codes if facts.joint else target_codes, target_vocabulary)

    @property
    def source_vocabulary(self) -> Vocabulary:
        """The types of the source language."""
        return self.source.vocabulary

    @property
    def target_vocabulary(self) -> Vocabulary:
        """The types of the target language."""
        return self.target.vocabulary

    def encode_source(self, raw_line: str) -> list[int]:
        """Return the ids of a raw source line, without special symbols; [] for an empty line."""
        return self.source_vocabulary.encode(self.source.tokens(raw_line))

    def encode_target(self, raw_line: str) -> list[int]:
        """Return the ids of a raw target line, without special symbols; [] for an empty line."""
        return self.target_vocabulary.encode(self.target.tokens(raw_line))

    def target_tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the target units of `ids` up to the first end symbol, without begin and pad."""
        tokens = [*map(int, ids), END]
        shown = tokens[: tokens.index(END)]
        return self.target.vocabulary.decode(t for t in shown if t not in (PAD, BEGIN))

    def restore_tokenized(self, ids: Iterable[int]) -> str:
        """Return the target words of `ids`: units joined, still tokenised."""
        return self.target.join(self.target_tokens(ids))

    def restore(self, ids: Iterable[int]) -> str:
        """Return `ids` as raw target text: units joined, detokenised."""
        return self.target.moses.detokenize(self.restore_tokenized(ids))

    @property
    def target_joiner(self) -> str:
        """The mark of word boundaries in target units; empty if units are words."""
        return self.target.mark

    @property
    def files(self) -> list[str]:
        """The names of the files that `save` writes, the facts last."""
        return [*_file_names(self.facts), FACTS]

    def save(self, folder: Path) -> None:
        """Write `text.json`, `vocab.<lang>.txt` and codes or models into `folder`."""
        folder = Path(folder)
        names = _file_names(self.facts)
        self.source.vocabulary.save(folder / names[0])
        self.target.vocabulary.save(folder / names[1])
        sides = [self.source] if self.facts.joint else [self.source, self.target]
        # Not strict: if units are words, there are sides but no codes files.
        for side, name in zip(sides, names[2:], strict=False):
            if side.codes is not None:
                side.codes.save(folder / name)
        facts = to_json(self.facts)
        # Left out if it has no effect, so that older versions can read the folder too.
        if not self.facts.turkic_case:
            del facts["turkic_case"]
        hashes = {name: _sha256(folder / name) for name in names}
        # The checksum of the checksums reveals a removed entry.
        hashes |= {"text": digest(facts), _TABLE: digest(hashes)}
        write_json(folder / FACTS, {"format": FORMAT, "text": facts, "sha256": hashes})

    @classmethod
    def load(cls, folder: Path) -> Pipeline:
        """Return the pipeline in `folder`.

        Raises StorageError naming the part that is missing, damaged or altered.
        """
        folder = Path(folder)
        facts, hashes = _read_facts(folder / FACTS)
        # Checked before parsing: a truncated vocabulary still parses, as a smaller one.
        names = _file_names(facts)
        for name in names:
            if not (folder / name).is_file():
                raise StorageError(f"{folder} lacks `{name}`.", _AGAIN)
            if name in hashes and _sha256(folder / name) != hashes[name]:
                raise _altered(folder / name)
        source, target = map(Vocabulary.load, (folder / names[0], folder / names[1]))
        try:
            # If units are words, there is no such file.
            codes = [_KINDS[facts.subwords].load(folder / name) for name in names[2:]]
        except InputError as fault:
            raise StorageError(
                f"{fault.path} is damaged: {fault.problem}", "Restore a copy."
            ) from fault
        except ConfigError as fault:
            raise StorageError(f"{folder} needs more: {fault.problem}", fault.advice) from fault
        return cls(facts, source, target, *codes)


def _file_names(facts: TextFacts) -> list[str]:
    """Return the names of the two vocabularies' files, then those of the codes, if any."""
    source, target = facts.languages
    names = [f"vocab.{source}.txt", f"vocab.{target}.txt"]
    if facts.subwords == "words":
        return names
    ending = ".codes" if facts.subwords == "bpe" else ENDING
    stem = facts.subwords
    codes = [stem] if facts.joint else [f"{stem}.{source}", f"{stem}.{target}"]
    return names + [f"{name}{ending}" for name in codes]


def _read_facts(path: Path) -> tuple[TextFacts, dict[str, str]]:
    if not path.is_file():
        raise StorageError(f"{path.parent} lacks `{path.name}`.", _AGAIN)
    facts = convert_file(path, read_json(path, FORMAT), _File)
    if facts.sha256.get("text") not in (None, digest(facts.text)):
        raise _altered(path)
    files = {name: value for name, value in facts.sha256.items() if name not in ("text", _TABLE)}
    # Folders of earlier versions may lack entries; those that exist must match.
    if facts.sha256.get(_TABLE) not in (None, digest(files)):
        raise _altered(path)
    return convert_file(path, facts.text, TextFacts), facts.sha256


def _altered(path: Path) -> StorageError:
    return StorageError(f"{path} has been truncated or altered (its checksum differs).", _AGAIN)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
