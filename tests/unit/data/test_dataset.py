"""Datasets: preprocess, bpe learn, lengths and batches; refusals and damage of every kind."""

from __future__ import annotations

import errno
import gzip
import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmtgrid.base.errors import ConfigError, DataError, InputError, NmtgridError, StorageError
from nmtgrid.base.io.arrays import ArrayFile, map_arrays
from nmtgrid.data import dataset, directory, subwords
from nmtgrid.data import directory as manifests
from nmtgrid.data.batches import BatchPlan, DataCursor, collate, cut_by_length
from nmtgrid.data.binarise import Lengths, write_split
from nmtgrid.data.build import TextPlan, preprocess_files, preprocess_toy
from nmtgrid.data.dataset import Dataset
from nmtgrid.data.directory import new_folder
from nmtgrid.data.subwords import SubwordPlan, learn_subwords
from nmtgrid.text import shards
from nmtgrid.text.cleaning import Filters
from nmtgrid.text.pipeline import Pipeline, TextFacts
from nmtgrid.text.vocabulary import BEGIN, END, PAD, Vocabulary
from tests.unit.helpers.damage import contents, cut, flip

PLAN = TextPlan("de", "en")


def _write(folder: Path, name: str, source: str | bytes, target: str | bytes) -> str:
    for language, text in (("de", source), ("en", target)):
        content = text.encode() if isinstance(text, str) else text
        (folder / f"{name}.{language}").write_bytes(content)
    return str(folder / name)


def _read(path: Path) -> list[str]:
    text = path.read_bytes().decode()
    assert text.endswith("\n")
    return text[:-1].split("\n")


def test_training_is_filtered_and_tests_are_whole(tmp_path: Path) -> None:
    long = "wort " * 176
    source = f"Ein Hund.\n\nEin Hund.\n{long}\nEin Hund\n{'x' * 1001} a\n"
    target = f"A dog.\nA dog\nA dog.\n{long}\na b c d\n{'x' * 1001} b\n"
    train = _write(tmp_path, "train", source, target)
    test = _write(tmp_path, "test", source, target)
    manifest = preprocess_files(PLAN, {"train": [train], "test": [test]}, tmp_path / "data")
    assert manifest["splits"]["train"] == {
        "pairs_read": 6, "pairs_kept": 2,
        "dropped": {"empty": 1, "too_long": 1, "ratio": 1, "long_word": 1}, "notes": {},
    }  # fmt: skip
    data = tmp_path / "data"
    assert _read(data / "text/train.de") == ["Ein Hund .", "Ein Hund ."]
    assert _read(data / "text/train.en") == ["A dog .", "A dog ."]
    assert not (data / "raw/train.de").exists()
    assert manifest["splits"]["test"]["pairs_kept"] == 6
    assert _read(data / "raw/test.de") == source[:-1].split("\n")
    assert _read(data / "raw/test.en") == target[:-1].split("\n")
    assert _read(data / "text/test.en")[4] == "a b c d"
    assert manifests.read(data)["splits"] == manifest["splits"]

    # A hundred thousand words in a line.
    long = " ".join(f"w{n}" for n in range(100_000))
    train = _write(tmp_path, "train", f"{long}\nb\n", f"{long}\nb\n")
    manifest = preprocess_files(PLAN, {"train": [train], "test": [train]}, tmp_path / "long")
    assert manifest["splits"]["train"]["dropped"]["too_long"] == 1
    assert len(_read(tmp_path / "long/text/test.de")[0].split()) == 100_000


def test_every_nth_kept_pair_goes_to_validation(tmp_path: Path) -> None:
    source, target = ("".join(f"{word} {n}.\n" for n in range(8)) for word in ("Satz", "Line"))
    train = _write(tmp_path, "train", "\n" + source, "x\n" + target)
    plan = TextPlan("de", "en", valid_every=3)
    manifest = preprocess_files(plan, {"train": [train]}, tmp_path / "data")
    assert list(manifest["splits"]) == ["train", "valid"]
    train_facts, valid_facts = manifest["splits"].values()
    assert (train_facts["pairs_read"], train_facts["pairs_kept"]) == (9, 6)
    assert train_facts["dropped"]["empty"] == 1
    assert train_facts["moved_to_valid"] == valid_facts["pairs_kept"] == 2
    assert _read(tmp_path / "data/raw/valid.de") == ["Satz 2.", "Satz 5."]
    assert _read(tmp_path / "data/text/train.en") == [f"Line {n} ." for n in (0, 1, 3, 4, 6, 7)]


def test_several_tests_and_files_behind_each_other(tmp_path: Path) -> None:
    a, b = _write(tmp_path, "a", "eins\n", "one\n"), _write(tmp_path, "b", "zwei\n", "two\n")
    prefixes = {"train": [a, b], "late": [b], "test": [b, a]}
    manifest = preprocess_files(PLAN, prefixes, tmp_path / "d")
    assert list(manifest["splits"]) == ["train", "late", "test"]
    assert _read(tmp_path / "d/raw/test.en") == ["two", "one"]
    assert _read(tmp_path / "d/text/train.de") == ["eins", "zwei"]


@pytest.mark.parametrize(("source", "target"), [(3, 4), (4, 3), (600, 601), (601, 600), (900, 2)])
@pytest.mark.parametrize("end", ["\n", ""])
def test_unequal_files_at_the_edges_of_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: int, target: int, end: str
) -> None:
    monkeypatch.setattr(shards, "_READ_SIZE", 2000)
    sides = "abc\n" * (source - 1) + f"abc{end}", "d\n" * (target - 1) + f"d{end}"
    train = _write(tmp_path, "train", *sides)
    longer, fewer = ("de", target) if source > target else ("en", source)
    words = rf"train\.{longer}:{fewer + 1}: this file has {max(source, target)} lines .* {fewer}\."
    with pytest.raises(InputError, match=words):
        preprocess_files(PLAN, {"train": [train]}, tmp_path / "data")


def test_packed_files_and_xml(tmp_path: Path) -> None:
    tags = "<url>u</url>\n<title>Ein Titel</title>\n Ein Satz.\n"
    for language in ("de", "en"):
        (tmp_path / f"train.tags.{language}").write_text(tags)
        segments = f'<mteval>\n<seg id="1"> Ich hab’s {language}. </seg>\n</mteval>\n'
        (tmp_path / f"dev.{language}.xml.gz").write_bytes(gzip.compress(segments.encode()))
    manifest = preprocess_files(
        TextPlan("de", "en", lowercase=True),
        {"train": [str(tmp_path / "train.tags")], "test": [str(tmp_path / "dev")]},
        tmp_path / "data",
        xml=True,
    )
    assert manifest["splits"]["train"]["pairs_kept"] == 2
    assert _read(tmp_path / "data/text/train.de") == ["ein titel", "ein satz ."]
    assert _read(tmp_path / "data/raw/test.de") == ["Ich hab's de."]
    assert _read(tmp_path / "data/text/test.en") == ["ich hab &apos;s en ."]


def test_what_is_put_right_is_noted(tmp_path: Path) -> None:
    train = _write(tmp_path, "train", b"\xef\xbb\xbfa\r\nb\r\n", "a\u2028\nb\n")
    manifest = preprocess_files(PLAN, {"train": [train], "test": [train]}, tmp_path / "data")
    notes = {
        "train.de": {"byte_order_marks": 1, "carriage_returns": 2},
        "train.en": {"line_separators": 1},
    }
    assert manifest["splits"]["train"]["notes"] == notes
    assert _read(tmp_path / "data/raw/test.de") == ["a", "b"]
    assert _read(tmp_path / "data/raw/test.en") == ["a\u2028", "b"]
    assert _read(tmp_path / "data/text/test.en") == ["a", "b"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"train.de": "a\nb\nc\n", "train.en": "a\nb\n"}, [r"train\.de:3: ", "3 lines", "2"]),
        ({"train.de": "Satz.\n" * 1500, "train.en": "Line.\n" * 1500, "test.de": b"a\n\xe9\n",
          "test.en": "a\nb\n"}, [r"test\.de:2: ", "UTF-8"]),
        ({"train.de": "a\n", "train.fr": "a\n"}, [r"file `.*/train\.en` \(nor", r"`\.de`, `\.fr`"]),
        ({"train.de": "a\n", "train.en": "a b c\n"}, ["no pair is left", r"\(dropped: ratio 1\)"]),
        ({"train": ""}, [r"/train\.de`"]),
        ({"train.de": "", "train.en": ""}, ["empty"]),
        ({"test.de": "a", "test.en": "b"}, ["--train"]),
    ],
)  # fmt: skip
def test_bad_input_is_named_and_leaves_nothing(
    tmp_path: Path, files: dict[str, str | bytes], words: list[str]
) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for name, text in files.items():
        (texts / name).write_bytes(text.encode() if isinstance(text, str) else text)
    prefixes = {name: [str(texts / name)] for name in {name.split(".")[0] for name in files}}
    for workers in (1, 2):
        with pytest.raises(NmtgridError) as caught:
            preprocess_files(TextPlan("de", "en", workers=workers), prefixes, tmp_path / "data")
        assert all(re.search(word, str(caught.value)) for word in words)
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


def test_faulty_settings_are_told_at_once(tmp_path: Path) -> None:
    plan = TextPlan("de", "de", filters=Filters(max_words=0), valid_every=1, workers=0)
    with pytest.raises(ConfigError) as caught:
        preprocess_files(plan, {"train": ["x"]}, tmp_path / "data")
    assert len(caught.value.faults) == 4
    with pytest.raises(ConfigError, match="not both"):
        prefixes = {"train": ["x"], "valid": ["y"]}
        preprocess_files(TextPlan("de", "en", valid_every=3), prefixes, tmp_path / "data")


def test_two_texts_of_one_name_are_refused(tmp_path: Path) -> None:
    """`test` in `simple.en` and `test.simple` in `en`."""
    prefixes = {"train": ["a"], "test": ["b"], "test.simple": ["c"]}
    with pytest.raises(ConfigError, match=r"stored as `test\.simple\.en`"):
        preprocess_files(TextPlan("en", "simple.en"), prefixes, tmp_path / "data")


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = _write(tmp_path, "train", "a\n", "b\n")
    out = tmp_path / "data"
    preprocess_files(PLAN, {"train": [train]}, out)
    before = contents(out)
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(directory.LineFile, "extend", full)
    with pytest.raises(StorageError, match="disk is full"):
        preprocess_files(PLAN, {"train": [train]}, out, overwrite=True)
    assert contents(out) == before
    assert {path.name for path in tmp_path.iterdir()} == {"train.de", "train.en", "data"}


def test_existing_folders(tmp_path: Path) -> None:
    prefixes = {"train": [_write(tmp_path, "train", "a\n", "b\n")]}
    out, other = tmp_path / "data", tmp_path / "precious"
    out.mkdir()
    preprocess_files(PLAN, prefixes, out)
    (other / "thesis.tex").mkdir(parents=True)
    for folder, words, overwrite in (
        (out, "exists already", False),
        (other, "not a dataset", True),
        (tmp_path / "train.de", "not a folder", True),
    ):
        with pytest.raises(DataError, match=words):
            preprocess_files(PLAN, prefixes, folder, overwrite=overwrite)
    assert (other / "thesis.tex").exists()
    (out / "model").mkdir()
    (out / "model/mine").write_text("x")
    with pytest.raises(DataError, match=r"model/mine is not part of the dataset"):
        preprocess_files(PLAN, prefixes, out, overwrite=True)
    assert (out / "model/mine").read_text() == "x"
    (out / "model/mine").unlink()
    (out / ".data.left.part").write_text("x")
    preprocess_files(PLAN, prefixes, out, overwrite=True)
    assert not (out / "model").exists() and not (out / ".data.left.part").exists()

    # An interruption leaves nothing.
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "a/b") as folder:
        (folder / "half").write_text("x")
        raise KeyboardInterrupt
    assert not (tmp_path / "a").exists()


def test_the_toy_corpus_keeps_its_truth(tmp_path: Path) -> None:
    plan = TextPlan("qa", "qb", lowercase=True, filters=Filters(max_ratio=1.2))
    manifest = preprocess_toy(plan, 300, tmp_path / "data", seed=3)
    assert manifest["toy"] == {"pairs": 300, "seed": 3, "difficulty": 1}
    assert manifest["splits"]["train"]["dropped"]["ratio"] > 0
    for name, split in manifest["splits"].items():
        truths = [json.loads(line) for line in _read(tmp_path / f"data/truth/{name}.jsonl")]
        sources = _read(tmp_path / f"data/text/{name}.qa")
        targets = _read(tmp_path / f"data/text/{name}.qb")
        assert len(truths) == len(sources) == len(targets) == split["pairs_kept"]
        for truth, source, target in zip(truths, sources, targets, strict=True):
            assert len(truth["reads"]) == len(target.split())
            assert truth["reads"][-1] == len(source.split())
            for target_word, source_word in truth["links"]:
                assert target_word < len(target.split())
                assert source_word < len(source.split())
    with pytest.raises(ConfigError, match="moses"):
        preprocess_toy(TextPlan("qa", "qb", tokenize="none"), 300, tmp_path / "other")


def test_progress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 40 lines of nine bytes, the target's are longer.
    monkeypatch.setattr(shards, "_READ_SIZE", 9 * 40 - 1)
    train = _write(tmp_path, "train", "satz xyz\n" * 100, "sentence xyz\n" * 100)
    seen = Mock()
    preprocess_files(PLAN, {"train": [train]}, tmp_path / "d", report=seen)
    assert [call.args[1] for call in seen.mock_calls] == [40, 80, 100]

    # Unequal segments.
    segment = '<seg id="1">a</seg>\n'
    train = _write(tmp_path, "dev", "<mteval>\n" + segment * 2, "<mteval>\n" + segment)
    with pytest.raises(InputError, match="2 lines of text"):
        preprocess_files(PLAN, {"train": [train]}, tmp_path / "xml", xml=True)


TRAIN = ("der hund\nder mann\nder hund bellt\n", "the dog\nthe man\nthe dog barks\n")
TEST = ("der Hund bellt\n\nein Mann\n", "The dog barks\n\na man\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A preprocessed dataset without a vocabulary."""
    texts = {"train": TRAIN, "test": TEST}
    prefixes = {name: [_write(tmp_path, name, *sides)] for name, sides in texts.items()}
    preprocess_files(TextPlan("de", "en", lowercase=True), prefixes, tmp_path / "data")
    return tmp_path / "data"


def test_words_and_their_batches(folder: Path) -> None:
    facts = learn_subwords(folder, SubwordPlan(words=True))
    dataset = Dataset.open(folder)
    # By falling count, then by name: der 3, hund 2, bellt 1, mann 1.
    vocabulary = dataset.pipeline.source_vocabulary
    assert vocabulary.types[4:] == ("der", "hund", "bellt", "mann")
    assert vocabulary.counts[4:] == (3, 2, 1, 1)
    assert (facts["source_vocab_size"], facts["target_vocab_size"]) == (8, 8)
    train, test = (dataset.split(name) for name in dataset.names)
    assert [train.source(i) for i in range(len(train))] == [[4, 5], [4, 7], [4, 5, 6]]
    assert test.source(0) == [4, 5, 6] and test.source(1) == test.target(1) == []
    assert test.source(-1) == [3, 7] and test.source_lengths.tolist() == [3, 0, 2]
    assert test.source_lengths.dtype == test.target_lengths.dtype == numpy.int32
    assert facts["splits"]["test"]["source_lengths"] == {"p5": 0, "p50": 2, "p95": 3, "total": 5}
    assert facts["splits"]["test"]["source_unknown"] == 1
    with pytest.raises(IndexError):
        test.source(3)
    assert Path(folder, "test.safetensors").exists()
    assert map_arrays(folder / "test.safetensors")["source.tokens"].dtype == numpy.uint16
    batch = test.batch(numpy.array([2, 1]))
    assert torch.equal(batch.source, torch.tensor([[3, 7, END], [END, PAD, PAD]]))
    assert batch.target_input[1].tolist() == [BEGIN, PAD, PAD]
    assert batch.indices.tolist() == [2, 1]
    assert test.raw_source() == ["der Hund bellt", "", "ein Mann"]
    assert test.raw_target() == ["The dog barks", "", "a man"]
    assert test.tokenized_target() == ["the dog barks", "", "a man"]
    assert test.tokenized_source() == ["der hund bellt", "", "ein mann"]
    with pytest.raises(DataError, match="not stored"):
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
    assert (folder / "bpe.codes").exists() is joint and facts["joint"] is joint
    for name in dataset.names:
        split = dataset.split(name)
        for i, line in enumerate(split.tokenized_target()):
            assert split.target(i) == pipeline.encode_target(line)
            if name == "train":
                assert pipeline.restore(split.target(i)) == line
    units_seen = sum(pipeline.source_vocabulary.counts)
    assert units_seen == facts["splits"]["train"]["source_lengths"]["total"]


def test_merges_are_of_both_languages_and_of_frequent_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn_subwords(folder, SubwordPlan(merges=1))
    # d+e stands in `der` (3); t+h (3) and h+e</w> (3) in `the`: the greatest pair wins.
    assert (folder / "bpe.codes").read_text() == "#version: 0.2\nt h\n"
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
    assert Dataset.open(folder).split("train").source(0) == [4, 5, 3, 3, 3]


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
    before = contents(folder)

    monkeypatch.setattr(ArrayFile, "append", Mock(side_effect=StorageError("the disk is full")))
    with pytest.raises(StorageError, match="full"):
        learn_subwords(folder, SubwordPlan(merges=3))
    assert contents(folder) == before


def test_a_fault_while_replacing_leaves_no_vocabulary(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn_subwords(folder, SubwordPlan(words=True))
    move = shutil.move

    def full(old: Path, new: Path) -> None:
        if Path(new) == folder / "train.safetensors":
            raise OSError(errno.EIO, "Input/output error")
        move(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "move", full)
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
        (SubwordPlan(pieces=0), "--pieces"),
        (SubwordPlan(min_count=0), "--min-count"),
        (SubwordPlan(words=True, codes=("x",)), "--words"),
        (SubwordPlan(codes=("x", "y", "z")), "--codes"),
        (SubwordPlan(joint=False, codes=("x",)), "--separate"),
    ],
)
def test_faulty_settings(folder: Path, plan: SubwordPlan, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        learn_subwords(folder, plan)


def test_no_vocabulary_and_one_that_does_not_fit(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Run `nmtgrid bpe learn"):
        Dataset.open(folder)
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(DataError, match="nmtgrid preprocess"):
            Dataset.open(path)
    learn_subwords(folder, SubwordPlan(words=True))
    dataset = Dataset.open(folder)
    dataset.pipeline.source.vocabulary = Vocabulary(["der"])
    with pytest.raises(StorageError, match="does not match the vocabulary"):
        dataset.split("train")


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


def test_what_later_versions_add_does_not_count(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["sha256"]
    manifest["text"]["new"] = 1
    (folder / "manifest.json").write_text(json.dumps(manifest))
    learn_subwords(folder, SubwordPlan(words=True))
    assert Dataset.open(folder).pipeline.facts.subwords == "words"


def test_foreign_manifests_are_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    whole = json.loads(path.read_text())
    without = {name: value for name, value in whole.items() if name != "splits"}
    for values in (whole | {"format": 9}, whole | {"kind": "cake"}, without):
        path.write_text(json.dumps(values))
        with pytest.raises((DataError, StorageError), match=r"manifest\.json"):
            Dataset.open(folder)


def test_large_vocabularies_need_wider_ids(tmp_path: Path) -> None:
    vocabulary = Vocabulary([f"w{n}" for n in range(65_533)])
    assert len(vocabulary) == 65_537
    how = TextFacts("de", "en", tokenize="none", subwords="words")
    pipeline = Pipeline(how, vocabulary, Vocabulary(["a"]))
    texts = [tmp_path / "x.de", tmp_path / "x.en"]
    texts[0].write_text("w65532 w0\n")
    texts[1].write_text("a\n")
    assert write_split(tmp_path / "x.safetensors", pipeline, texts)["pairs"] == [1, 1]
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
        with pytest.raises(StorageError, match="offsets are inconsistent"):
            dataset._checked_lengths(folder, arrays["source.tokens"], falling, "source", 9)
        with pytest.raises(StorageError, match="ids above 6"):
            tokens, offsets = arrays["source.tokens"], arrays["source.offsets"]
            dataset._checked_lengths(folder, tokens, offsets, "source", 7)


def test_percentiles_of_lengths() -> None:
    lengths = Lengths(range(1, 101))
    assert lengths.summary() == {"p5": 5, "p50": 50, "p95": 95, "total": 5050}
    lengths.update([100] * 900)
    assert lengths.summary()["p5"] == 50
    assert Lengths().summary() == {"p5": 0, "p50": 0, "p95": 0, "total": 0}


def plan(count: int = 300, **changes: int) -> BatchPlan:
    lengths = numpy.random.default_rng(1).integers(1, 30, (2, count))
    settings: dict[str, Any] = {"max_tokens": 120, "max_cells": 1500, **changes}
    return BatchPlan(lengths[0], lengths[1], **settings)


def test_collate_pads_and_select_cuts() -> None:
    batch = whole = collate([[5, 6], [7]], [[8], [9, 10, 11]], [3, 1])
    assert batch.source.tolist() == [[5, 6, 2], [7, 2, 0]]
    assert batch.target_input.tolist() == [[1, 8, 0, 0], [1, 9, 10, 11]]
    assert batch.target_output.tolist() == [[8, 2, 0, 0], [9, 10, 11, 2]]
    assert batch.source_lengths.tolist() == [3, 2] and batch.target_lengths.tolist() == [2, 4]
    assert batch.is_target.tolist() == [[True, True, False, False], [True] * 4]
    batch = whole.select(torch.tensor([0]))
    assert batch.source.tolist() == [[5, 6, 2]] and batch.target_output.tolist() == [[8, 2]]
    assert batch.indices.tolist() == [3]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60),
    st.integers(1, 200),
    st.integers(0, 2000),
)
def test_limits_hold(pairs: list[tuple[int, int]], max_tokens: int, max_cells: int) -> None:
    source, target = (numpy.array(side) for side in zip(*pairs, strict=True))
    batches = cut_by_length(source, target, numpy.arange(len(pairs)), max_tokens, max_cells)
    assert sorted(numpy.concatenate(batches).tolist()) == list(range(len(pairs)))
    for batch in batches:
        tokens = len(batch) * (int(target[batch].max()) + 1)
        cells = tokens * (int(source[batch].max()) + 1)
        assert len(batch) == 1 or (tokens <= max_tokens and (not max_cells or cells <= max_cells))


def test_limits_count_the_end_symbol_and_skip_long_pairs() -> None:
    # Four targets of 4 tokens are 5 positions each: 20 fit, 19 do not.
    lengths = numpy.full(4, 4)
    for limits, sizes in (((20,), [4]), ((19,), [3, 1]), ((99, 100), [4]), ((99, 99), [3, 1])):
        batches = cut_by_length(lengths, lengths, numpy.arange(4), *limits)
        assert [len(batch) for batch in batches] == sizes
    source, target = numpy.array([1, 9, 3, 0, 5]), numpy.array([1, 2, 9, 4, 5])
    plan = BatchPlan(source, target, 100, max_length=8)
    assert plan.skipped == 3 and plan.count == 2
    assert sorted(numpy.concatenate(plan.epoch(0)).tolist()) == [0, 4]


def test_epochs_differ_and_pools_hold_each_pair_once() -> None:
    first, again = plan().epoch(0), plan().epoch(0)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    other_epoch, other_seed = plan().epoch(1), plan(seed=2).epoch(0)
    for other in (other_epoch, other_seed):
        assert [b.tolist() for b in other] != [b.tolist() for b in first]
        assert sorted(numpy.concatenate(other)) == list(range(300))
    lengths = numpy.full((2, 1000), 4)
    epoch = BatchPlan(lengths[0], lengths[1], 50, pool_size=100, block_size=10).epoch(3)
    assert sorted(numpy.concatenate(epoch).tolist()) == list(range(1000))
    assert len(set((numpy.concatenate(epoch[:10]) // 10).tolist())) == 10


@pytest.mark.parametrize("pool_size", [1_000_000, 64])
def test_a_walk_goes_on_from_any_place(pool_size: int) -> None:
    lengths = numpy.random.default_rng(2).integers(1, 9, (2, 200))
    plan = BatchPlan(lengths[0], lengths[1], 60, pool_size=pool_size, block_size=16)
    whole = list(itertools.islice(plan.walk(DataCursor.begin()), 2 * len(plan.epoch(0)) + 3))
    for taken in range(len(whole)):
        start = DataCursor.begin() if taken == 0 else whole[taken - 1][0]
        _, following = next(plan.walk(start))
        assert following.tolist() == whole[taken][1].tolist()


def test_the_part_of_an_epoch_that_is_done_grows_evenly() -> None:
    lengths = numpy.tile([5, 7, 9, 200], 300)
    plan = BatchPlan(lengths, lengths, 80, max_length=100, pool_size=400, block_size=100)
    following = [progress for progress, _ in plan.walk(DataCursor.begin(2), epochs=1)]
    each = plan.count / len(following)
    for done, progress in enumerate(following, start=1):
        part = pytest.approx(2 + done / len(following), abs=0.02)
        assert plan.epochs_done(progress, each) == part
    assert plan.epochs_done(following[-1], each) == 3


def test_an_epoch_ends_with_its_last_usable_pair() -> None:
    lengths = numpy.full((2, 40), 4)
    lengths[0, 10:30] = 0
    plan = BatchPlan(lengths[0], lengths[1], 25, pool_size=10, block_size=10)
    is_last = []
    for epoch in range(20):
        *_, (following, indices) = plan.walk(DataCursor.begin(epoch), epochs=1)
        assert following == DataCursor.begin(epoch + 1)
        is_last.append(int(indices[0]) // 10)
    # Either block of usable pairs has come last, with empty ones behind it or not.
    assert set(is_last) == {0, 3}


def test_fill_is_high_on_lengths_that_go_together() -> None:
    draw = numpy.random.default_rng(4)
    target = draw.integers(3, 40, 5000)
    source = numpy.maximum(1, target + draw.integers(-6, 7, 5000))
    plan = BatchPlan(source, target, 1500, 24000)
    valid = int(((source + 1) * (target + 1)).sum())
    padded = sum(len(b) * (source[b].max() + 1) * (target[b].max() + 1) for b in plan.epoch(0))
    assert valid / padded > 0.85
