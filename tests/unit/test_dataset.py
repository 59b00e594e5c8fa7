"""bpe learn and the dataset it completes: ids, lengths, vocabularies, and damage of every kind."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from nmtgrid.base.errors import ConfigError, DataError, InputError, NmtgridError, StorageError
from nmtgrid.base.io.arrays import ArrayFile, map_arrays
from nmtgrid.data import dataset, subwords
from nmtgrid.data.binarise import Lengths, write_split
from nmtgrid.data.build import TextPlan, preprocess_files
from nmtgrid.data.dataset import Dataset
from nmtgrid.data.subwords import SubwordPlan, learn_subwords
from nmtgrid.text.pipeline import Pipeline, TextFacts
from nmtgrid.text.vocabulary import BEGIN, END, PAD, Vocabulary
from tests.unit.damage import cut, flip

TRAIN = ("der hund\nder mann\nder hund bellt\n", "the dog\nthe man\nthe dog barks\n")
TEST = ("der Hund bellt\n\nein Mann\n", "The dog barks\n\na man\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A preprocessed dataset without a vocabulary."""
    for name, sides in (("train", TRAIN), ("test", TEST)):
        for language, text in zip(("de", "en"), sides, strict=True):
            (tmp_path / f"{name}.{language}").write_text(text)
    prefixes = {name: [str(tmp_path / name)] for name in ("train", "test")}
    preprocess_files(TextPlan("de", "en", lowercase=True), prefixes, tmp_path / "data")
    return tmp_path / "data"


def test_words(folder: Path) -> None:
    facts = learn_subwords(folder, SubwordPlan(words=True))
    dataset = Dataset.open(folder)
    # By falling count, then by name: der 3, hund 2, bellt 1, mann 1.
    vocabulary = dataset.pipeline.source_vocabulary
    assert vocabulary.types[4:] == ("der", "hund", "bellt", "mann")
    assert vocabulary.counts[4:] == (3, 2, 1, 1)
    assert (facts["source_vocab_size"], facts["target_vocab_size"]) == (8, 8)
    train, test = (dataset.split(name) for name in dataset.names)
    assert [train.source(i) for i in range(len(train))] == [[4, 5], [4, 7], [4, 5, 6]]
    assert test.source(0) == [4, 5, 6]
    assert test.source(1) == test.target(1) == []
    assert test.source(-1) == [3, 7]
    assert test.source_lengths.tolist() == [3, 0, 2]
    assert test.source_lengths.dtype == test.target_lengths.dtype == numpy.int32
    assert facts["splits"]["test"]["source_lengths"] == {"p5": 0, "p50": 2, "p95": 3, "total": 5}
    assert facts["splits"]["test"]["source_unknown"] == 1
    with pytest.raises(IndexError):
        test.source(3)
    assert Path(folder, "test.safetensors").exists()
    assert map_arrays(folder / "test.safetensors")["source.tokens"].dtype == numpy.uint16


def test_batches_and_text(folder: Path) -> None:
    learn_subwords(folder, SubwordPlan(words=True))
    test = Dataset.open(folder).split("test")
    batch = test.batch(numpy.array([2, 1]))
    assert torch.equal(batch.source, torch.tensor([[3, 7, END], [END, PAD, PAD]]))
    assert batch.target_input[1].tolist() == [BEGIN, PAD, PAD]
    assert batch.indices.tolist() == [2, 1]
    assert test.raw_source() == ["der Hund bellt", "", "ein Mann"]
    assert test.raw_target() == ["The dog barks", "", "a man"]
    assert test.tokenized_target() == ["the dog barks", "", "a man"]
    assert test.tokenized_source() == ["der hund bellt", "", "ein mann"]
    with pytest.raises(DataError, match="not kept"):
        Dataset.open(folder).split("train").raw_source()
    with pytest.raises(DataError, match="`test`"):
        Dataset.open(folder).split("tset")


def test_least_count(folder: Path) -> None:
    facts = learn_subwords(folder, SubwordPlan(words=True, min_count=2))
    assert facts["source_vocab_size"] == 6
    assert facts["splits"]["train"]["source_unknown"] == 2
    with pytest.raises(InputError, match="--min-count"):
        learn_subwords(folder, SubwordPlan(words=True, min_count=9))


@pytest.mark.parametrize("joint", [True, False])
def test_bpe_of_a_dataset_is_bpe_of_its_lines(folder: Path, joint: bool) -> None:
    facts = learn_subwords(folder, SubwordPlan(merges=8, joint=joint))
    dataset = Dataset.open(folder)
    pipeline = dataset.pipeline
    assert pipeline.facts == TextFacts("de", "en", lowercase=True, joint=joint)
    assert (folder / "bpe.codes").exists() is joint
    assert facts["joint"] is joint
    for name in dataset.names:
        split = dataset.split(name)
        for i, line in enumerate(split.tokenized_target()):
            assert split.target(i) == pipeline.encode_target(line)
            if name == "train":
                assert pipeline.restore(split.target(i)) == line
    units_seen = sum(pipeline.source_vocabulary.counts)
    assert units_seen == facts["splits"]["train"]["source_lengths"]["total"]


def test_joint_merges_are_learned_from_both_languages(folder: Path) -> None:
    learn_subwords(folder, SubwordPlan(merges=1))
    # d+e stands in `der` (3); t+h (3) and h+e</w> (3) in `the`: the greatest pair wins.
    assert (folder / "bpe.codes").read_text() == "#version: 0.2\nt h\n"


def test_merges_are_learned_from_the_most_frequent_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subwords, "MOST_LEARNED", 1)
    facts = learn_subwords(folder, SubwordPlan(merges=9, joint=False))
    # `der` and `the`, three times each, of four words on either side.
    assert (facts["words_learned_from"], facts["words_not_learned_from"]) == ([1, 1], [3, 3])
    assert (folder / "bpe.en.codes").read_text() == "#version: 0.2\nt h\nth e</w>\n"


def test_given_codes_and_dictionaries(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "codes").write_text("#version: 0.2\nd e\nde r</w>\n")
    (tmp_path / "dict.de").write_text("der 9\nh@@ 3\n")
    (tmp_path / "dict.en").write_text("<unk>\n<s>\n</s>\nt@@\n")
    plan = SubwordPlan(
        codes=(str(tmp_path / "codes"),),
        source_vocabulary=str(tmp_path / "dict.de"),
        target_vocabulary=str(tmp_path / "dict.en"),
    )
    facts = learn_subwords(folder, plan)
    assert (facts["source_vocab_size"], facts["target_vocab_size"]) == (6, 5)
    assert facts["merges"] == [2]
    split = Dataset.open(folder).split("train")
    assert split.source(0) == [4, 5, 3, 3, 3]


def test_learning_again_replaces_everything(folder: Path) -> None:
    learn_subwords(folder, SubwordPlan(merges=8, joint=False))
    learn_subwords(folder, SubwordPlan(words=True))
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "manifest.json", "text", "raw", "text.json", "vocab.de.txt", "vocab.en.txt",
        "train.safetensors", "test.safetensors",
    }  # fmt: skip
    assert len(Dataset.open(folder).pipeline.source_vocabulary) == 8


def test_a_full_disk_leaves_the_dataset_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn_subwords(folder, SubwordPlan(words=True))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def full(*_: Any) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(ArrayFile, "append", full)
    with pytest.raises(StorageError, match="full"):
        learn_subwords(folder, SubwordPlan(merges=3))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_fault_while_replacing_leaves_no_vocabulary(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn_subwords(folder, SubwordPlan(words=True))
    replace = os.replace

    def full(old: Path, new: Path) -> None:
        if Path(new) == folder / "train.safetensors":
            raise OSError(errno.EIO, "Input/output error")
        replace(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(StorageError, match="Input/output error"):
            learn_subwords(folder, SubwordPlan(merges=3))
    with pytest.raises(DataError, match="no vocabulary"):
        Dataset.open(folder)
    learn_subwords(folder, SubwordPlan(merges=3))
    Dataset.open(folder)


@pytest.mark.parametrize(
    ("plan", "word"),
    [
        (SubwordPlan(merges=0), "--merges"),
        (SubwordPlan(min_count=0), "--min-count"),
        (SubwordPlan(words=True, codes=("x",)), "--words"),
        (SubwordPlan(codes=("x", "y", "z")), "--codes"),
        (SubwordPlan(joint=False, codes=("x",)), "--separate"),
    ],
)
def test_faulty_settings(folder: Path, plan: SubwordPlan, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        learn_subwords(folder, plan)


def test_no_dataset_and_no_vocabulary(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Run `nmtgrid bpe learn"):
        Dataset.open(folder)
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(DataError, match="nmtgrid preprocess"):
            Dataset.open(path)


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink])
@pytest.mark.parametrize(
    "name", ["train.safetensors", "test.safetensors", "vocab.de.txt", "bpe.codes", "text.json"]
)
def test_damage_is_found_on_opening(folder: Path, name: str, harm: Callable[[Path], None]) -> None:
    learn_subwords(folder, SubwordPlan(merges=8))
    harm(folder / name)
    with pytest.raises(NmtgridError, match=name.replace(".", r"\.")) as caught:
        Dataset.open(folder)
    assert caught.value.advice


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink])
def test_damaged_text_is_found(folder: Path, harm: Callable[[Path], None]) -> None:
    learn_subwords(folder, SubwordPlan(merges=8))
    dataset = Dataset.open(folder)
    harm(folder / "text/train.de")
    with pytest.raises(NmtgridError, match=r"text/train\.de"):
        learn_subwords(folder, SubwordPlan(merges=3))
    harm(folder / "raw/test.en")
    with pytest.raises(NmtgridError, match=r"raw/test\.en"):
        dataset.split("test").raw_target()


def test_ids_beyond_the_vocabulary_are_refused(folder: Path) -> None:
    learn_subwords(folder, SubwordPlan(words=True))
    dataset = Dataset.open(folder)
    dataset.pipeline.source.vocabulary = Vocabulary(["der"])
    with pytest.raises(StorageError, match="does not fit the vocabulary"):
        dataset.split("train")


@pytest.mark.parametrize("change", [{"format": 9}, {"kind": "cake"}, {"splits": None}])
def test_foreign_manifests_are_refused(folder: Path, change: dict[str, Any]) -> None:
    path = folder / "manifest.json"
    values = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    with pytest.raises(DataError):
        Dataset.open(folder)


def test_large_vocabularies_need_wider_ids(tmp_path: Path) -> None:
    vocabulary = Vocabulary([f"w{n}" for n in range(65_533)])
    assert len(vocabulary) == 65_537
    how = TextFacts("de", "en", tokenize="none", subwords="words")
    pipeline = Pipeline(how, vocabulary, Vocabulary(["a"]))
    texts = [tmp_path / "x.de", tmp_path / "x.en"]
    for path, text in zip(texts, ("w65532 w0\n", "a\n"), strict=True):
        path.write_text(text)
    facts = write_split(tmp_path / "x.safetensors", pipeline, texts)
    assert facts["pairs"] == [1, 1]
    arrays = map_arrays(tmp_path / "x.safetensors")
    assert arrays["source.tokens"].dtype == numpy.uint32
    assert arrays["target.tokens"].dtype == numpy.uint16
    assert arrays["source.tokens"].tolist() == [65_536, 4]
    assert arrays["source.offsets"].tolist() == [0, 2]


def test_lengths_do_not_depend_on_how_much_is_read_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn_subwords(folder, SubwordPlan(words=True))
    for piece in (1, 2, 3, 1 << 20):
        monkeypatch.setattr(dataset, "_PIECE", piece)
        train = Dataset.open(folder).split("train")
        assert train.source_lengths.tolist() == [2, 2, 3]
        assert train.target_lengths.tolist() == [2, 2, 3]
        arrays = map_arrays(folder / "train.safetensors")
        falling = numpy.array([0, 5, 2, 7])
        with pytest.raises(StorageError, match="offsets make no sense"):
            dataset._checked_lengths(folder, arrays["source.tokens"], falling, "source", 9)
        with pytest.raises(StorageError, match="ids beyond 6"):
            tokens, offsets = arrays["source.tokens"], arrays["source.offsets"]
            dataset._checked_lengths(folder, tokens, offsets, "source", 7)


def test_percentiles_of_lengths() -> None:
    lengths = Lengths()
    lengths.counts.update(range(1, 101))
    assert lengths.summary() == {"p5": 5, "p50": 50, "p95": 95, "total": 5050}
    lengths.counts.update([100] * 900)
    assert lengths.summary()["p5"] == 50
    assert Lengths().summary() == {"p5": 0, "p50": 0, "p95": 0, "total": 0}
