"""Vocabularies: ids, files of ours and of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmtgrid.base.errors import InputError, StorageError
from nmtgrid.text.vocabulary import BEGIN, END, PAD, SPECIALS, UNKNOWN, Vocabulary


def test_ids_are_lines(tmp_path: Path) -> None:
    vocabulary = Vocabulary(["der", "hund"], [9, 2])
    assert len(vocabulary) == 6
    assert vocabulary.encode(["hund", "der", "katze"]) == [5, 4, UNKNOWN]
    assert vocabulary.decode([4, 5, PAD, BEGIN, END, UNKNOWN]) == ["der", "hund", *SPECIALS]
    path = tmp_path / "v"
    vocabulary.save(path)
    lines = path.read_text().splitlines()
    assert lines == ["<pad> 0", "<s> 0", "</s> 0", "<unk> 0", "der 9", "hund 2"]
    read = Vocabulary.load(path)
    assert (read.types, read.counts) == (vocabulary.types, vocabulary.counts)


def test_words_spelt_like_specials_are_unknown() -> None:
    vocabulary = Vocabulary.from_counts({"<s>": 5, "<pad>": 3, "a": 1})
    assert vocabulary.encode(["<s>", "</s>", "<pad>", "<unk>", "a"]) == [3, 3, 3, 3, 4]
    assert "a" in vocabulary
    assert "<s>" not in vocabulary


def test_order_and_least_count() -> None:
    counts = {"b": 2, "a": 2, "c": 7, "d": 1}
    assert Vocabulary.from_counts(counts, 2).types[4:] == ("c", "a", "b")
    with pytest.raises(ValueError, match="distinct"):
        Vocabulary(["a", "a"])


def test_odd_types_survive(tmp_path: Path) -> None:
    types = ["\u2028", "a\u00a0b", "12", "ü@@"]
    Vocabulary(types).save(tmp_path / "v")
    assert Vocabulary.load(tmp_path / "v").types[4:] == tuple(types)


def test_dictionaries_of_others(tmp_path: Path) -> None:
    path = tmp_path / "dict"
    path.write_text("der 9\n@@x 5\nmadeupword0000 0\n")
    read = Vocabulary.read_foreign(path)
    assert (len(read), read.types[4], read.counts[4]) == (7, "der", 9)
    path.write_text("<unk>\n<s>\n</s>\nder\n12\n")
    assert Vocabulary.read_foreign(path).types[4:] == ("der", "12")
    read.save(path)
    assert Vocabulary.read_foreign(path).types == read.types


@pytest.mark.parametrize(
    ("text", "line"),
    [("a 1\nb\n", 2), ("a 1\na 2\n", 2), ("a\n\n", 2), ("a\nb c\n", 2), ("a 1\nb x\n", 2)],
)
def test_a_faulty_line_is_named(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "dict"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        Vocabulary.read_foreign(path)
    assert caught.value.line == line


def test_load_takes_only_ours(tmp_path: Path) -> None:
    path = tmp_path / "v"
    path.write_text("der 9\n")
    with pytest.raises(StorageError, match="not a vocabulary of ours"):
        Vocabulary.load(path)
    path.write_text("<pad> 0\n<s> 0\nx\n")
    with pytest.raises(StorageError, match="damaged"):
        Vocabulary.load(path)
