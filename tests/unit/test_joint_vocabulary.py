"""One vocabulary for both languages: what `model.tie=all` shares its matrix over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nmtgrid.cli.app import main
from nmtgrid.data.build import TextPlan, preprocess_files
from nmtgrid.data.dataset import Dataset
from nmtgrid.data.subwords import SubwordPlan, learn_subwords


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


def test_without_it_each_language_has_its_own(folder: Path) -> None:
    facts = learn_subwords(folder, SubwordPlan(words=True))
    assert facts["joint_vocabulary"] is False
    assert "die" not in Dataset.open(folder).pipeline.target_vocabulary


@pytest.mark.parametrize("units", [["--merges", "3"], ["--merges", "3", "--separate"], ["--words"]])
def test_a_tied_model_trains_on_it(folder: Path, tmp_path: Path, units: list[str]) -> None:
    report = tmp_path / "report.json"
    learn = ["bpe", "learn", str(folder), "--joint-vocabulary", "--json", str(report), *units]
    assert main(learn) == 0
    values = json.loads(report.read_text())
    assert values["source_vocab_size"] == values["target_vocab_size"]
    split = Dataset.open(folder).split("train")
    assert values["train"]["source_unknown"] == values["train"]["target_unknown"] == 0
    assert max(split.source(1) + split.target(1)) < values["source_vocab_size"]
    small = ["model.depth=1", "model.size=8", "model.feed_forward_size=8", "model.tie=all"]
    options = [part for setting in small for part in ("--set", setting)]
    model = ["--out", str(tmp_path / "model"), "--max-updates", "1"]
    assert main(["train", str(folder), *model, *options]) == 0


def test_given_dictionaries_are_not_joined(folder: Path) -> None:
    plan = SubwordPlan(joint_vocabulary=True, source_vocabulary="x")
    assert "--joint-vocabulary" in plan.faults()[0]
