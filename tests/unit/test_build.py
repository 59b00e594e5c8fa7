"""preprocess: what is kept, dropped, moved and counted; and what is refused, leaving nothing."""

from __future__ import annotations

import errno
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.base.errors import ConfigError, DataError, InputError, NmtgridError, StorageError
from nmtgrid.data import directory
from nmtgrid.data import directory as manifests
from nmtgrid.data.build import TextPlan, preprocess_files, preprocess_toy
from nmtgrid.data.directory import new_folder
from nmtgrid.text import shards
from nmtgrid.text.cleaning import Filters

PLAN = TextPlan("de", "en")


def _write(folder: Path, name: str, source: str | bytes, target: str | bytes) -> str:
    for language, text in (("de", source), ("en", target)):
        content = text.encode() if isinstance(text, str) else text
        (folder / f"{name}.{language}").write_bytes(content)
    return str(folder / name)


def _pairs(count: int) -> tuple[str, str]:
    return (
        "".join(f"Satz {n}.\n" for n in range(count)),
        "".join(f"Line {n}.\n" for n in range(count)),
    )


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


def test_a_hundred_thousand_words_in_a_line(tmp_path: Path) -> None:
    long = " ".join(f"w{n}" for n in range(100_000))
    train = _write(tmp_path, "train", f"{long}\nb\n", f"{long}\nb\n")
    manifest = preprocess_files(PLAN, {"train": [train], "test": [train]}, tmp_path / "data")
    assert manifest["splits"]["train"]["dropped"]["too_long"] == 1
    assert len(_read(tmp_path / "data/text/test.de")[0].split()) == 100_000


def test_every_nth_kept_pair_goes_to_validation(tmp_path: Path) -> None:
    source, target = _pairs(8)
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
    first = _write(tmp_path, "a", "eins\n", "one\n")
    second = _write(tmp_path, "b", "zwei\n", "two\n")
    manifest = preprocess_files(
        PLAN, {"train": [first, second], "late": [second], "test": [second, first]}, tmp_path / "d"
    )
    assert list(manifest["splits"]) == ["train", "late", "test"]
    assert _read(tmp_path / "d/raw/test.en") == ["two", "one"]
    assert _read(tmp_path / "d/text/train.de") == ["eins", "zwei"]


@pytest.mark.parametrize(("source", "target"), [(3, 4), (4, 3), (600, 601), (601, 600), (900, 2)])
@pytest.mark.parametrize("end", ["\n", ""])
def test_unequal_files_at_the_edges_of_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: int, target: int, end: str
) -> None:
    monkeypatch.setattr(shards, "_READ_SIZE", 2000)
    train = _write(
        tmp_path, "train", "abc\n" * (source - 1) + f"abc{end}", "d\n" * (target - 1) + f"d{end}"
    )
    longer, fewer = ("de", target) if source > target else ("en", source)
    words = rf"train\.{longer}:{fewer + 1}: this file has {max(source, target)} lines .* {fewer}\."
    with pytest.raises(InputError, match=words):
        preprocess_files(PLAN, {"train": [train]}, tmp_path / "data")


def test_packed_files_and_xml(tmp_path: Path) -> None:
    tags = "<url>u</url>\n<title>Ein Titel</title>\n Ein Satz.\n"
    for language in ("de", "en"):
        (tmp_path / f"train.tags.{language}").write_text(tags)
        segments = f'<mteval>\n<seg id="1"> Ich hab’s {language}. </seg>\n</mteval>\n'
        packed = gzip.compress(segments.encode())
        (tmp_path / f"dev.{language}.xml.gz").write_bytes(packed)
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


def _unequal(folder: Path) -> dict[str, list[str]]:
    return {"train": [_write(folder, "train", "a\nb\nc\n", "a\nb\n")]}


def _latin(folder: Path) -> dict[str, list[str]]:
    good = _write(folder, "train", *_pairs(1500))
    return {"train": [good], "test": [_write(folder, "test", b"a\n\xe9\n", "a\nb\n")]}


def _language(folder: Path) -> dict[str, list[str]]:
    (folder / "train.de").write_text("a\n")
    (folder / "train.fr").write_text("a\n")
    return {"train": [str(folder / "train")]}


def _nothing_left(folder: Path) -> dict[str, list[str]]:
    return {"train": [_write(folder, "train", "a\n", "a b c\n")]}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_unequal, [r"train\.de:3: ", "3 lines", "2"]),
        (_latin, [r"test\.de:2: ", "UTF-8"]),
        (_language, [r"`train\.en`", r"`\.de`, `\.fr`"]),
        (_nothing_left, ["no pair is left", "ratio 1"]),
        (lambda folder: {"train": [str(folder / "none")]}, [r"`none\.de`"]),
        (lambda folder: {"train": [_write(folder, "train", "", "")]}, ["empty"]),
        (lambda folder: {"test": [_write(folder, "test", "a", "b")]}, ["--train"]),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(
    tmp_path: Path, make: Callable[[Path], dict[str, list[str]]], words: list[str]
) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    prefixes = make(texts)
    for workers in (1, 2):
        with pytest.raises(NmtgridError) as caught:
            preprocess_files(TextPlan("de", "en", workers=workers), prefixes, tmp_path / "data")
        for word in words:
            assert re.search(word, str(caught.value))
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


def test_faulty_settings_are_told_at_once(tmp_path: Path) -> None:
    plan = TextPlan("de", "de", filters=Filters(max_words=0), valid_every=1, workers=0)
    with pytest.raises(ConfigError) as caught:
        preprocess_files(plan, {"train": ["x"]}, tmp_path / "data")
    assert len(caught.value.faults) == 4
    with pytest.raises(ConfigError, match="not both"):
        plan = TextPlan("de", "en", valid_every=3)
        preprocess_files(plan, {"train": ["x"], "valid": ["y"]}, tmp_path / "data")


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = _write(tmp_path, "train", "a\n", "b\n")
    out = tmp_path / "data"
    preprocess_files(PLAN, {"train": [train]}, out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def full(self: Any, lines: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(directory.LineFile, "extend", full)
    with pytest.raises(StorageError, match="disk is full"):
        preprocess_files(PLAN, {"train": [train]}, out, overwrite=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"train.de", "train.en", "data"}


def test_existing_folders(tmp_path: Path) -> None:
    train = _write(tmp_path, "train", "a\n", "b\n")
    out = tmp_path / "data"
    out.mkdir()
    preprocess_files(PLAN, {"train": [train]}, out)
    with pytest.raises(DataError, match="there already"):
        preprocess_files(PLAN, {"train": [train]}, out)
    (out / "model").mkdir()
    (out / "model/mine").write_text("x")
    with pytest.raises(DataError, match=r"model/mine is no part of the dataset"):
        preprocess_files(PLAN, {"train": [train]}, out, overwrite=True)
    assert (out / "model/mine").read_text() == "x"
    (out / "model/mine").unlink()
    (out / ".data.left.part").write_text("x")
    preprocess_files(PLAN, {"train": [train]}, out, overwrite=True)
    assert not (out / "model").exists() and not (out / ".data.left.part").exists()
    other = tmp_path / "precious"
    other.mkdir()
    (other / "thesis.tex").write_text("x")
    with pytest.raises(DataError, match="not a dataset"):
        preprocess_files(PLAN, {"train": [train]}, other, overwrite=True)
    assert (other / "thesis.tex").read_text() == "x"
    with pytest.raises(DataError, match="not a folder"):
        preprocess_files(PLAN, {"train": [train]}, tmp_path / "train.de", overwrite=True)


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "a/b") as folder:
        (folder / "half").write_text("x")
        raise KeyboardInterrupt
    assert list((tmp_path / "a").iterdir()) == []


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
    seen: list[int] = []
    preprocess_files(
        PLAN, {"train": [train]}, tmp_path / "d", report=lambda meter, done: seen.append(done)
    )
    assert seen == [40, 80, 100]


def test_xml_with_unequal_segments(tmp_path: Path) -> None:
    segment = '<seg id="1">a</seg>\n'
    train = _write(tmp_path, "dev", "<mteval>\n" + segment * 2, "<mteval>\n" + segment)
    with pytest.raises(InputError, match="2 lines of text"):
        preprocess_files(PLAN, {"train": [train]}, tmp_path / "d", xml=True)
