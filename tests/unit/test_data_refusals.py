"""Links, odd codes and options without effect: `preprocess`, `bpe` and datasets for `decode`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.cli.app import main
from nmtgrid.data.dataset import Dataset
from nmtgrid.models import zoo
from nmtgrid.models.directory import save_model
from nmtgrid.text.bpe import Codes


def run(*arguments: object) -> int:
    return main(list(map(str, arguments)))


def prepared(folder: Path, *options: str) -> Path:
    """Return a dataset of a few lines of capitals and commas."""
    for name, lines in (("train", 9), ("test", 2)):
        for language in ("de", "en"):
            (folder / f"{name}.{language}").write_text("Ab, cd.\n" * lines, encoding="utf-8")
    data = folder / f"data{'-'.join(['', *options]).replace('--', '')}"
    named = ["--train", folder / "train", "--test", folder / "test", "--out", data]
    assert run("preprocess", "--source-lang", "de", "--target-lang", "en", *named, *options) == 0
    assert run("bpe", "learn", data, "--words") == 0
    return data


@pytest.mark.parametrize("is_there", [True, False])
def test_a_dataset_is_made_behind_a_link(tmp_path: Path, told: list[str], is_there: bool) -> None:
    """Folders of data are often links to a larger disk."""
    real, link = tmp_path / "scratch" / "real", tmp_path / "data"
    real.parent.mkdir()
    if is_there:
        real.mkdir()
    link.symlink_to(real)
    for options in ([], ["--overwrite"]):
        assert run("preprocess", "--toy", 5, "--out", link, *options) == 0
        assert link.is_symlink() and json.loads((real / "manifest.json").read_text())
    assert sorted(os.listdir(tmp_path)) == ["data", "scratch"]
    assert os.listdir(real.parent) == ["real"]


def test_merges_of_digits_are_no_counts(tmp_path: Path) -> None:
    """As subword-nmt learns them from numbers; without its header they could be a dictionary."""
    path = tmp_path / "codes"
    path.write_text("#version: 0.2\n1 2\n12 3\n1 4\n", encoding="utf-8")
    assert Codes.load(path).merges == ["1 2", "12 3", "1 4"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--vocab-source", "{}/vocab.de.txt", "--vocab-target", "{}/vocab.en.txt"], True),
        (["--vocab-source", "{}/vocab.de.txt"], False),
    ],
)
def test_counts_that_nothing_is_counted_by(
    tmp_path: Path, told: list[str], options: list[str], words: bool
) -> None:
    data = prepared(tmp_path)
    kept = tmp_path / "kept"
    kept.mkdir()
    for language in ("de", "en"):
        (kept / f"vocab.{language}.txt").write_bytes((data / f"vocab.{language}.txt").read_bytes())
    given = [option.format(kept) for option in options]
    code = run("bpe", "learn", data, "--words", "--min-count", 2, *given)
    assert (code, "`--min-count` has no effect" in told[-1]) == ((2, True) if words else (0, False))


def test_the_toy_corpus_has_its_validation(tmp_path: Path, told: list[str]) -> None:
    assert run("preprocess", "--toy", 30, "--valid-every", 10, "--out", tmp_path / "d") == 2
    assert "of its own: leave `--valid-every` out" in told[-1]


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, Path]:
    data = prepared(tmp_path)
    pipeline = Dataset.open(data).pipeline
    torch.manual_seed(1)
    made = zoo.build(
        "bilstm", overrides={"encoder_depth": 1, "decoder_depth": 1, "size": 8},
        source_vocab_size=len(pipeline.source_vocabulary),
        target_vocab_size=len(pipeline.target_vocabulary),
    )  # fmt: skip
    folder = tmp_path / "model"
    save_model(folder, made, pipeline, {"search": {"beam": 2, "max_length_b": 3.0}})
    return folder, data


@pytest.mark.parametrize(
    ("options", "words"),
    [((), None), (("--tokenize", "none"), "tokenize=none"), (("--lowercase",), "lowercase=True")],
)
def test_scores_of_text_that_was_prepared_in_another_way(
    model: tuple[Path, Path], tmp_path: Path, told: list[str], options: tuple[str, ...],
    words: str | None,
) -> None:  # fmt: skip
    data = prepared(tmp_path, *options) if options else model[1]
    del told[:]
    assert run("decode", model[0], "--data", data, "--device", "cpu") == 0
    warned = [line for line in told if "prepared in different ways" in line]
    assert len(warned) == (words is not None)
    assert words is None or words in warned[0]


def test_one_setting_twice(model: tuple[Path, Path], tmp_path: Path, told: list[str]) -> None:
    source: Any = tmp_path / "test.de"
    both = ["--beam", 2, "--set", "beam=3"]
    assert run("decode", model[0], source, "--device", "cpu", *both) == 2
    assert "`--set beam` and `--beam` say the same" in told[-1]
