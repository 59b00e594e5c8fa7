"""The text pipeline: raw text to token ids and back.

It is saved with the dataset and with each model, which so translates raw text without the dataset.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from nmtgrid.base.config import from_json, to_json
from nmtgrid.base.errors import InputError, StorageError
from nmtgrid.base.io.atomic import read_json, write_json
from nmtgrid.base.io.checksums import digest
from nmtgrid.text.bpe import JOINER, Codes, remove_bpe
from nmtgrid.text.moses import Moses
from nmtgrid.text.vocabulary import BEGIN, END, PAD, Vocabulary

FORMAT = 1
FACTS = "text.json"
# The entry of the checksums that covers the checksums of the files.
_TABLE = "table"
_AGAIN = "Restore a copy, or make the folder again."


@dataclasses.dataclass(frozen=True)
class TextFacts:
    """How raw text becomes units."""

    source_lang: str
    target_lang: str
    tokenize: Literal["moses", "none"] = "moses"
    lowercase: bool = False
    subwords: Literal["bpe", "words"] = "bpe"
    joint: bool = True
    """One set of BPE codes for both languages; each language has its own vocabulary."""

    @property
    def languages(self) -> tuple[str, str]:
        """The names that stand in file names: `source` and `target` if the languages are one."""
        if self.source_lang == self.target_lang:
            return "source", "target"
        return self.source_lang, self.target_lang


class Side:
    """One language: raw line -> words -> units -> ids."""

    def __init__(self, moses: Moses, codes: Codes | None, vocabulary: Vocabulary) -> None:
        self.moses = moses
        self.codes = codes
        self.vocabulary = vocabulary

    def units(self, words: list[str]) -> list[str]:
        """Return the units of tokenised `words`."""
        return words if self.codes is None else self.codes.segment(words)

    def encode_words(self, words: list[str]) -> list[int]:
        """Return the ids of tokenised `words`, without special symbols."""
        return self.vocabulary.encode(self.units(words))

    def tokens(self, raw_line: str) -> list[str]:
        """Return the units of a raw line."""
        return self.units(self.moses.tokenize(raw_line).split())


class Pipeline:
    """The two sides of a translation direction."""

    def __init__(
        self,
        facts: TextFacts,
        source_vocabulary: Vocabulary,
        target_vocabulary: Vocabulary,
        codes: Codes | None = None,
        target_codes: Codes | None = None,
    ) -> None:
        """`codes` serve both languages unless there are `target_codes`; words need none."""
        if (facts.subwords == "bpe") != (codes is not None):
            raise ValueError("codes are given exactly when the units are BPE's")
        moses = facts.tokenize == "moses"
        self.facts = facts
        self.source = Side(
            Moses(facts.source_lang, moses, facts.lowercase), codes, source_vocabulary
        )
        self.target = Side(
            Moses(facts.target_lang, moses, facts.lowercase),
            codes if facts.joint else target_codes,
            target_vocabulary,
        )

    @property
    def source_vocabulary(self) -> Vocabulary:
        """The types of the source language."""
        return self.source.vocabulary

    @property
    def target_vocabulary(self) -> Vocabulary:
        """The types of the target language."""
        return self.target.vocabulary

    def source_tokens(self, raw_line: str) -> list[str]:
        """Return the units of a raw source line; [] for an empty line."""
        return self.source.tokens(raw_line)

    def source_words(self, raw_line: str) -> list[list[str]]:
        """Return the units of each raw word of a source line, tokenised without its context.

        A stream knows no more of a word when it arrives. Where the tokeniser looks at the words
        around, such as after an abbreviation, the units can differ from those of the line.
        """
        return [self.source_tokens(word) for word in raw_line.split()]

    def encode_source(self, raw_line: str) -> list[int]:
        """Return the ids of a raw source line, without special symbols; [] for an empty line."""
        return self.source_vocabulary.encode(self.source.tokens(raw_line))

    def encode_target(self, raw_line: str) -> list[int]:
        """Return the ids of a raw target line, without special symbols; [] for an empty line."""
        return self.target_vocabulary.encode(self.target.tokens(raw_line))

    def target_tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the target units of `ids` up to the first end symbol, without begin and pad."""
        tokens = itertools.takewhile(lambda token: token != END, map(int, ids))
        return self.target_vocabulary.decode(t for t in tokens if t not in (PAD, BEGIN))

    def restore_tokenized(self, ids: Iterable[int]) -> str:
        """Return the target words of `ids`: BPE undone, still tokenised."""
        text = " ".join(self.target_tokens(ids))
        return text if self.target.codes is None else remove_bpe(text)

    def restore(self, ids: Iterable[int]) -> str:
        """Return `ids` as raw target text: BPE undone, detokenised."""
        return self.target.moses.detokenize(self.restore_tokenized(ids))

    @property
    def target_joiner(self) -> str:
        """What ends a target unit that does not end its word; empty where units are words."""
        return JOINER if self.target.codes is not None else ""

    @property
    def files(self) -> list[str]:
        """The names of the files that `save` writes, the facts last."""
        return [*_file_names(self.facts), FACTS]

    def save(self, folder: Path) -> None:
        """Write `text.json`, `vocab.<lang>.txt` and the codes into `folder`."""
        folder = Path(folder)
        source, target = self.facts.languages
        self.source_vocabulary.save(folder / f"vocab.{source}.txt")
        self.target_vocabulary.save(folder / f"vocab.{target}.txt")
        sides = [self.source] if self.facts.joint else [self.source, self.target]
        # Not strict: with words as units there are sides, but no files of codes.
        for side, name in zip(sides, _codes_names(self.facts), strict=False):
            if side.codes is not None:
                side.codes.save(folder / name)
        facts = to_json(self.facts)
        hashes = {name: _sha256(folder / name) for name in _file_names(self.facts)}
        # The checksum of the checksums notices an entry that was removed.
        hashes |= {"text": digest(facts), _TABLE: digest(hashes)}
        write_json(folder / FACTS, {"format": FORMAT, "text": facts, "sha256": hashes})

    @classmethod
    def load(cls, folder: Path) -> Pipeline:
        """Return the pipeline in `folder`.

        Raises StorageError naming the part that is missing, damaged or altered.
        """
        folder = Path(folder)
        facts, hashes = _read_facts(folder / FACTS)
        # Checked before parsing: a vocabulary that was cut still parses, as a smaller one.
        for name in _file_names(facts):
            if not (folder / name).is_file():
                raise StorageError(f"{folder} lacks `{name}`.", _AGAIN)
            if name in hashes and _sha256(folder / name) != hashes[name]:
                raise _altered(folder / name)
        source, target = (Vocabulary.load(folder / f"vocab.{name}.txt") for name in facts.languages)
        try:
            codes = [Codes.load(folder / name) for name in _codes_names(facts)]
        except InputError as fault:
            raise StorageError(
                f"{fault.path} is damaged: {fault.problem}", "Restore a copy."
            ) from fault
        return cls(facts, source, target, *codes)


def _file_names(facts: TextFacts) -> list[str]:
    return [*(f"vocab.{name}.txt" for name in facts.languages), *_codes_names(facts)]


def _codes_names(facts: TextFacts) -> list[str]:
    if facts.subwords == "words":
        return []
    return ["bpe.codes"] if facts.joint else [f"bpe.{name}.codes" for name in facts.languages]


def _read_facts(path: Path) -> tuple[TextFacts, dict[str, Any]]:
    if not path.is_file():
        raise StorageError(f"{path.parent} lacks `{path.name}`.", _AGAIN)
    values = read_json(path)
    if not isinstance(values, dict) or not isinstance(values.get("text"), dict):
        raise StorageError(f"{path} is damaged: it has no text settings.", _AGAIN)
    if values.get("format") != FORMAT:
        raise StorageError(
            f"{path} has format {values.get('format')}, but this program reads {FORMAT}.",
            "Use the version of nmtgrid that wrote it, or make it again.",
        )
    hashes = values.get("sha256")
    if not isinstance(hashes, dict) or hashes.get("text") not in (None, digest(values["text"])):
        raise _altered(path)
    files = {name: value for name, value in hashes.items() if name not in ("text", _TABLE)}
    # Folders of earlier versions may lack entries; those that exist must match.
    if hashes.get(_TABLE) not in (None, digest(files)):
        raise _altered(path)
    missing = [name for name in ("source_lang", "target_lang") if name not in values["text"]]
    if missing:
        raise StorageError(f"{path} is damaged: it lacks `{missing[0]}`.", _AGAIN)
    return from_json(TextFacts, values["text"]), hashes


def _altered(path: Path) -> StorageError:
    return StorageError(f"{path} has been truncated or altered (its checksum differs).", _AGAIN)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
