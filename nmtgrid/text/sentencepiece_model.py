"""SentencePiece (Kudo and Richardson 2018); the only module that imports that package.

Its model puts `▁` before each word and segments words into pieces. It needs no tokenizer and no
spaces: in Chinese a whole sentence is one word, whose pieces are like words. Models trained
elsewhere may also normalise the text; those learned here do not, so that the pieces reproduce it
exactly.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.base.io.atomic import atomic_file, reason, refuse_stream
from nmtgrid.base.subword_marks import SPACE

ENDING = ".model"
ENDINGS = (ENDING, ".spm")
# A word that selects the target language of a multilingual model, as in OPUS-MT: `>>fra<<`,
# `>>zho_Hans<<`. Other words between such marks are text in quotation marks.
_LANGUAGE_CODE = re.compile(r"(>>[a-z]{2,3}(?:[-_@][A-Za-z0-9]{1,8})*<<)(.*)", re.DOTALL)
_LARGEST_CACHE = 200_000
# Text with more distinct characters is in a script such as Han, whose rarest become unknown.
_LARGEST_ALPHABET = 1000
_LARGEST_FILE = 1 << 28
_MOST_LETTERS = 1000
"""Maximum length of words that are cached."""


class SentencePieceModel:
    """Segments words into pieces, each word separately."""

    def __init__(self, content: bytes) -> None:
        """`content` is that of a `.model` file. Raises ValueError if it cannot be used."""
        try:
            self._processor: Any = _package().SentencePieceProcessor(model_proto=content)
        except RuntimeError as fault:
            raise ValueError("it is not a model of SentencePiece, or damaged") from fault
        self._content = content
        self._cache: dict[str, list[str]] = {}
        processor = self._processor
        pieces = map(processor.id_to_piece, range(len(self)))
        if any(SPACE in piece[1:] for piece in pieces):
            raise ValueError(
                "its pieces span several words, or have the space at the end of a word (trained "
                "with `--split_by_whitespace=false` or `--treat_whitespace_as_suffix`), so words "
                "cannot be segmented one by one"
            )
        if not "".join(processor.encode("x", out_type=str)).startswith(SPACE):
            raise ValueError(
                "it does not mark the first word of a line (trained with "
                "`--add_dummy_prefix=false`), so the pieces of a word depend on its position"
            )
        if any(map(processor.is_byte, range(len(self)))):
            raise ValueError(
                "it splits rare characters into bytes (trained with `--byte_fallback`), which are "
                "not text one by one"
            )

    def __len__(self) -> int:
        count: int = self._processor.get_piece_size()
        return count

    def __contains__(self, piece: object) -> bool:
        """Return whether this is a piece of the model or a language code such as `>>fra<<`."""
        processor = self._processor
        is_piece = bool(processor.piece_to_id(piece) != processor.unk_id())
        return is_piece or _LANGUAGE_CODE.fullmatch(str(piece)) is not None

    def __reduce__(self) -> tuple[type[SentencePieceModel], tuple[bytes]]:
        return SentencePieceModel, (self._content,)

    @classmethod
    def load(cls, path: str | Path) -> SentencePieceModel:
        """Return the model in the file `path`. Raises InputError for any other file."""
        path = Path(path)
        refuse_stream(path)
        try:
            if path.stat().st_size > _LARGEST_FILE:
                raise InputError("is too large for a model of SentencePiece.", path=path)
            return cls(path.read_bytes())
        except OSError as fault:
            raise InputError(f"cannot be read: {reason(fault)}.", path=path) from fault
        except ValueError as fault:
            raise InputError(
                f"{fault}.", "Give a `.model` (or `.spm`) of `spm_train`.", path=path
            ) from fault

    def save(self, path: str | Path) -> None:
        """Write the model as it was read or learned."""
        with atomic_file(Path(path)) as file:
            file.write(self._content)

    def segment(self, words: Iterable[str]) -> list[str]:
        """Return the pieces of `words`; the first of each word begins with `▁`.

        Unknown characters and language codes such as `>>fra<<` are kept as they are. A word that
        normalisation removes entirely has no pieces.
        """
        pieces: list[str] = []
        for word in words:
            of_word = self._cache.get(word)
            if of_word is None:
                of_word = self._cut(word)
                if len(self._cache) >= _LARGEST_CACHE:
                    self._cache.clear()
                if len(word) <= _MOST_LETTERS:
                    self._cache[word] = of_word
            pieces.extend(of_word)
        return pieces

    def _cut(self, word: str) -> list[str]:
        code = _LANGUAGE_CODE.fullmatch(word) if word.startswith(">>") else None
        if code is not None:
            return [code[1], *self._processor.encode(code[2], out_type=str)]
        pieces: list[str] = self._processor.encode(word, out_type=str)
        return pieces


def learn_pieces(word_counts: Mapping[str, int], pieces: int) -> SentencePieceModel:
    """Return a unigram model of about `pieces` pieces learned from the counts of words.

    It does not normalise: the pieces of a word are its text, except that a `▁` in it counts as a
    space. There are fewer pieces if the text does not have enough. Raises ConfigError if there is
    nothing to learn from, or if `pieces` is too small for the text's characters.
    """
    if not word_counts:
        raise ConfigError("There is nothing to learn from: no text.", "Check the training text.")
    alphabet = len({character for word in word_counts for character in word})
    trainer, content = _package().SentencePieceTrainer, io.BytesIO()
    try:
        trainer.train(
            # Lines of a word and its count in the order of the text, so that the model is the same.
            sentence_iterator=(f"{word}\t{count}" for word, count in word_counts.items()),
            input_format="tsv",
            model_writer=content,
            model_type="unigram",
            # The default maps `，` to `,` and `½` to `1⁄2`: no translation could then contain them.
            normalization_rule_name="identity",
            vocab_size=pieces,
            hard_vocab_limit=False,
            character_coverage=0.9995 if alphabet > _LARGEST_ALPHABET else 1.0,
            # No sentence that `preprocess` keeps is left out.
            max_sentence_length=1 << 20,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as fault:
        if "Vocabulary size is smaller than required_chars" in str(fault):
            raise ConfigError(
                f"`--pieces {pieces}` is too small: the training text has {alphabet:,} different "
                "characters, each of which needs a piece.",
                f"Give at least {alphabet + 10:,}.",
            ) from fault
        problem = str(fault).rpartition("] ")[2].strip() or "no reason given"
        raise ConfigError(
            f"SentencePiece cannot learn from this text: {problem}", "Give more training text."
        ) from fault
    return SentencePieceModel(content.getvalue())


def _package() -> Any:
    try:
        import sentencepiece
    except ImportError as fault:
        raise ConfigError(
            "The package `sentencepiece` is not installed.", "`pip install sentencepiece`."
        ) from fault
    return sentencepiece
