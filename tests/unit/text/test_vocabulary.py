"""Vocabularies: ids, files of ours and of others, one for both languages."""

import json
from pathlib import Path

import pytest

from nmtgrid.base.errors import InputError, StorageError
from nmtgrid.cli.app import main
from nmtgrid.data.build import TextPlan, preprocess_files
from nmtgrid.data.dataset import Dataset
from nmtgrid.data.subwords import SubwordPlan, learn_subwords
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
    types = ["\u2028", "a\u00a0b", "12", "ü@@"]
    Vocabulary(types).save(tmp_path / "v")
    assert Vocabulary.load(tmp_path / "v").types[4:] == tuple(types)


def test_words_spelt_like_specials_are_unknown() -> None:
    spelt = Vocabulary.from_counts({"<s>": 5, "<pad>": 3, "a": 1})
    assert spelt.encode(["<s>", "</s>", "<pad>", "<unk>", "a"]) == [3, 3, 3, 3, 4]
    assert "a" in spelt
    assert "<s>" not in spelt
    counts = {"b": 2, "a": 2, "c": 7, "d": 1}
    assert Vocabulary.from_counts(counts, 2).types[4:] == ("c", "a", "b")
    with pytest.raises(ValueError, match="distinct"):
        Vocabulary(["a", "a"])


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


def test_pieces_with_scores_are_no_words(tmp_path: Path) -> None:
    """SentencePiece's `.vocab` has tabs between pieces and scores."""
    (tmp_path / "v").write_text("<unk>\t0\n.\t-2.1\n")
    with pytest.raises(InputError, match="one word"):
        Vocabulary.read_foreign(tmp_path / "v")


def test_load_takes_only_ours(tmp_path: Path) -> None:
    path = tmp_path / "v"
    path.write_text("der 9\n")
    with pytest.raises(StorageError, match="not a vocabulary of nmtgrid"):
        Vocabulary.load(path)
    path.write_text("<pad> 0\n<s> 0\nx\n")
    with pytest.raises(StorageError, match="damaged"):
        Vocabulary.load(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A preprocessed dataset whose languages share the word `hand`."""
    (tmp_path / "train.de").write_text("die hand\ndie hand bellt\n")
    (tmp_path / "train.en").write_text("the hand\nthe hand barks\n")
    preprocess_files(TextPlan("de", "en"), {"train": [str(tmp_path / "train")]}, tmp_path / "data")
    return tmp_path / "data"


def test_words_of_both_languages_in_one_vocabulary(folder: Path) -> None:
    facts = learn_subwords(folder, SubwordPlan(words=True, joint_vocabulary=True))
    dataset = Dataset.open(folder)
    source, target = dataset.pipeline.source_vocabulary, dataset.pipeline.target_vocabulary
    # hand 2 + 2, die 2, the 2, barks 1, bellt 1; equals by name.
    assert source.types[4:] == target.types[4:] == ("hand", "die", "the", "barks", "bellt")
    assert source.counts[4:] == (4, 2, 2, 1, 1)
    assert (folder / "vocab.de.txt").read_bytes() == (folder / "vocab.en.txt").read_bytes()
    assert facts["source_vocab_size"] == facts["target_vocab_size"] == 9
    assert facts["joint_vocabulary"] is True
    train = dataset.split("train")
    assert (train.source(1), train.target(1)) == ([5, 4, 8], [6, 4, 7])


def test_given_dictionaries_are_not_joined(folder: Path) -> None:
    facts = learn_subwords(folder, SubwordPlan(words=True))
    assert facts["joint_vocabulary"] is False
    assert "die" not in Dataset.open(folder).pipeline.target_vocabulary
    plan = SubwordPlan(joint_vocabulary=True, source_vocabulary="x")
    assert "--joint-vocabulary" in plan.faults()[0]


@pytest.mark.parametrize("units", [["--merges", "3"], ["--merges", "3", "--separate"], ["--words"]])
def test_a_tied_model_trains_on_it(folder: Path, tmp_path: Path, units: list[str]) -> None:
    report = tmp_path / "report.json"
    learn = ["bpe", "learn", str(folder), "--joint-vocabulary", "--json", str(report), *units]
    assert main(learn) == 0
    values = json.loads(report.read_text())
    assert values["source_vocab_size"] == values["target_vocab_size"]
    split = Dataset.open(folder).split("train")
    assert values["splits"]["train"]["source_unknown"] == 0
    assert values["splits"]["train"]["target_unknown"] == 0
    assert max(split.source(1) + split.target(1)) < values["source_vocab_size"]
    small = ["model.depth=1", "model.size=8", "model.feed_forward_size=8", "model.tie=all"]
    options = [part for setting in small for part in ("--set", setting)]
    model = ["--out", str(tmp_path / "model"), "--max-updates", "1"]
    assert main(["train", str(folder), *model, *options]) == 0
