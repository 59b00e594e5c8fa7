"""Text in several processes: the same bytes and the same faults, however many there are."""

import copy
import random
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.base.errors import InputError, StorageError
from nmtgrid.data import binarise, subwords
from nmtgrid.data import subwords as counting
from nmtgrid.data.binarise import write_split
from nmtgrid.data.build import TextPlan, preprocess_files
from nmtgrid.data.dataset import Dataset
from nmtgrid.data.subwords import SubwordPlan, learn_subwords
from nmtgrid.text import shards


def _write(folder: Path, source: bytes, target: bytes) -> str:
    for language, content in (("de", source), ("en", target)):
        (folder / f"train.{language}").write_bytes(content)
    return str(folder / "train")


def test_processes_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_READ_SIZE", 500)
    sides = (f"{word} {n}.\n" for word in ("Satz", "Line") for n in range(2500))
    lines = [line.encode() for line in sides]
    train = _write(tmp_path, b"".join(lines[:2500]), b"".join(lines[2500:]))
    results = []
    for workers in (1, 2, 4):
        plan = TextPlan("de", "en", valid_every=23, workers=workers)
        manifest = preprocess_files(plan, {"train": [train]}, tmp_path / f"d{workers}")
        results.append((manifest["splits"], manifest["files"]))
    # The sizes and hashes of all files are among the results.
    assert results[0] == results[1] == results[2]
    # Line 2 is no text, and the files part at line 1001: whoever reads ahead keeps the order.
    monkeypatch.setattr(shards, "_READ_SIZE", 100)
    train = _write(tmp_path, b"a\n\xe9\n" + b"a\n" * 998, b"b\n" * 1001)
    for workers in (1, 2):
        plan = TextPlan("de", "en", workers=workers)
        with pytest.raises(InputError, match=r"train\.de:2: .*UTF-8"):
            preprocess_files(plan, {"train": [train]}, tmp_path / "data")


def _large_folder(tmp_path: Path, pairs: int) -> Path:
    """A dataset of words and lines of all lengths, some of them empty."""
    draw = random.Random(4)
    for name, count in (("train", pairs), ("test", 9)):
        for language in ("de", "en"):
            lines = []
            for _ in range(count):
                kinds = [int(draw.paretovariate(0.7)) % 500 for _ in range(draw.randint(0, 9))]
                lines.append(" ".join(f"{language}{kind}ö" for kind in kinds) + "\n")
            (tmp_path / f"{name}.{language}").write_text("".join(lines))
    prefixes = {name: [str(tmp_path / name)] for name in ("train", "test")}
    preprocess_files(TextPlan("de", "en"), prefixes, tmp_path / "data")
    return tmp_path / "data"


def _in_turn(work: Any, parts: Any, workers: int = 1) -> Any:
    """As `map_ordered`, but in this process: each worker has a copy of `work` of its own."""
    copies = [copy.deepcopy(work) for _ in range(max(workers, 1))]
    return ((part, copies[index % len(copies)](part)) for index, part in enumerate(parts))


@pytest.mark.parametrize("words", [False, True])
def test_the_number_of_processes_changes_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: bool
) -> None:
    folder = _large_folder(tmp_path, 700)
    monkeypatch.setattr(shards, "MIN_BLOCK", 512)
    monkeypatch.setattr(counting, "CHUNK", 100)
    monkeypatch.setattr(binarise, "_LARGEST_BLOCK", 2000)
    monkeypatch.setattr(subwords, "MOST_KNOWN", 50)
    for module in (counting, binarise, subwords):
        monkeypatch.setattr(module, "map_ordered", _in_turn)
    seen = []
    for workers in (1, 2, 4):
        plan = SubwordPlan(merges=40, words=words, joint=False, workers=workers)
        facts = learn_subwords(folder, plan)
        contents = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        del contents["manifest.json"], facts["seconds"]
        seen.append((facts, contents))
    assert seen[0] == seen[1] == seen[2]
    # And it is what the pipeline makes of each line.
    dataset = Dataset.open(folder)
    train = dataset.split("train")
    for index, line in enumerate(train.tokenized_source()):
        assert train.source(index) == dataset.pipeline.source.encode_words(line.split())


def test_processes_encode_as_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _large_folder(tmp_path, 60)
    learn_subwords(folder, SubwordPlan(words=True))
    monkeypatch.setattr(binarise, "_LARGEST_BLOCK", 500)
    monkeypatch.setattr(shards, "MIN_BLOCK", 500)
    texts = [folder / f"text/train.{language}" for language in ("de", "en")]
    again = tmp_path / "train.safetensors"
    write_split(again, Dataset.open(folder).pipeline, texts, workers=2)
    assert again.read_bytes() == (folder / "train.safetensors").read_bytes()


def test_blocks_are_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MIN_BLOCK", 4)
    monkeypatch.setattr(shards, "_PIECE", 3)
    path = tmp_path / "x"
    for content in ("", "a", "ab\n\ncdefgh\n", "ö\nü\u2028\n\n", "abcdefghij\nk"):
        path.write_text(content, newline="\n")
        cut = shards.split_file(path)
        texts = ["".join(shards.read_block(block)) for block in cut]
        assert "".join(texts) == content
        assert all(text.endswith("\n") for text in texts[:-1])
        assert [block.start for block in cut[1:]] == [block.end for block in cut[:-1]]
    assert shards.split_lines("a\n\nb") == ["a", "", "b"]
    assert shards.split_lines("a\n\n") == ["a", ""]
    path.write_bytes(b"a\n\xff\n")
    with pytest.raises(StorageError, match="not UTF-8"):
        list(shards.read_block(shards.Block(path, 0, 4)))
