"""Datasets of pictures: what goes where, what is dropped, and what a batch holds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from nmtgrid.base.errors import ConfigError, DataError, InputError, StorageError
from nmtgrid.base.io.arrays import save_tensors
from nmtgrid.data import directory as manifests
from nmtgrid.data.captioning.build import CaptionPlan, CaptionSources, preprocess_captions
from nmtgrid.data.captioning.coco import Caption
from nmtgrid.data.captioning.dataset import Pictures, PictureSource, check_size
from nmtgrid.data.dataset import Dataset
from nmtgrid.data.subwords import SubwordPlan, learn_subwords
from nmtgrid.text.vocabulary import END, PAD
from tests.unit.tiny_pictures import KARPATHY, build, coco, files, lines, split_of, write_json


def test_karpathys_splits(tmp_path: Path) -> None:
    """Words are lower-cased without punctuation; a caption of a full stop alone is dropped."""
    dataset, manifest = build(tmp_path)
    data = tmp_path / "data"
    assert dataset.names == ["train", "valid", "test"]
    assert lines(data, "text/train.en") == ["a cat", "one cat sits", "a dog runs"]
    assert lines(data, "raw/train.en") == ["A cat.", "One cat sits", "A dog runs!"]
    assert lines(data, "text/valid.en") == ["a dog", "the dog &apos;s bone", "a cat"]
    assert lines(data, "pictures/train.txt") == ["9", "a10.jpg"]
    train = manifest["splits"]["train"]
    assert (train["pairs_read"], train["pairs_kept"], train["pictures"]) == (4, 3, 2)
    assert train["dropped"] == {"empty": 1, "too_long": 0}
    assert manifest["notes"] == {"restval": 1, "features_without_captions": 1}
    assert manifest["source"] == {"kind": "features", "size": 3, "type": "F32"}


def test_restval_trains_if_asked(tmp_path: Path) -> None:
    sources = dataclasses.replace(files(tmp_path), restval=True)
    _, manifest = build(tmp_path, sources)
    assert lines(tmp_path / "data", "pictures/train.txt") == ["9", "a10.jpg", "a11"]
    assert manifest["notes"] == {"restval": 0, "features_without_captions": 0}


def test_a_training_pair_for_each_caption(tmp_path: Path) -> None:
    """Two captions of picture 9 (one region), one of picture 10 (two regions)."""
    dataset, _ = build(tmp_path)
    train = split_of(dataset, "train")
    assert len(train) == 3
    assert train.source_lengths.tolist() == [1, 1, 2]
    assert train.target_lengths.tolist() == [2, 3, 3]
    batch = train.batch([2, 0])
    assert batch.source.dtype == torch.float32
    assert batch.source.tolist() == [[[0, 1, 2], [3, 4, 5]], [[0, 1, 2], [0, 0, 0]]]
    assert batch.source_lengths.tolist() == [2, 1]
    decode = dataset.pipeline.target_vocabulary.decode
    assert decode(batch.target_output[0]) == ["a", "dog", "runs", "</s>"]
    assert batch.target_output[1].tolist()[2:] == [END, PAD]
    assert batch.references is not None
    assert [decode(row) for row in batch.references[1]] == [
        ["a", "cat", "<pad>"], ["one", "cat", "sits"],
    ]  # fmt: skip
    assert decode(batch.references[0, 1]) == ["<pad>"] * 3


def test_a_picture_once_in_validation_with_all_its_references(tmp_path: Path) -> None:
    dataset, _ = build(tmp_path)
    valid = split_of(dataset, "valid")
    assert len(valid) == 1 and valid.source_lengths.tolist() == [3]
    assert valid.tokenized_target() == ["a dog"] and valid.raw_target() == ["A dog."]
    assert valid.references() == [["a dog", "the dog &apos;s bone", "a cat"]]
    batch = valid.batch([0])
    assert batch.references is not None and batch.references.shape == (1, 3, 4)
    part = batch.select(torch.tensor([0])).to(torch.device("cpu"))
    assert part.references is not None and part.references.equal(batch.references)


def test_sources_have_no_text(tmp_path: Path) -> None:
    split = split_of(build(tmp_path)[0], "valid")
    for asked in (split.raw_source, split.tokenized_source, lambda: split.source(0)):
        with pytest.raises(DataError, match="are pictures, not text"):
            asked()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_features_stay_as_they_were_given(tmp_path: Path, dtype: torch.dtype) -> None:
    dataset, manifest = build(tmp_path, files(tmp_path / "given", dtype))
    assert manifest["source"]["type"] == {torch.float16: "F16", torch.bfloat16: "BF16"}[dtype]
    size = (tmp_path / "data/pictures/test.safetensors").stat().st_size
    assert size < 600
    assert split_of(dataset, "test").batch([0]).source.tolist() == [[[-1.5] * 3] * 2]


def test_subword_units_of_captions(tmp_path: Path) -> None:
    dataset, _ = build(tmp_path, units=SubwordPlan(merges=3))
    assert dataset.pipeline.target.codes is not None
    assert len(dataset.pipeline.source_vocabulary) == 4 + 3
    train = split_of(dataset, "train")
    assert dataset.pipeline.restore_tokenized(train.target(0)) == "a cat"


def test_units_of_pictures_are_refused(tmp_path: Path) -> None:
    preprocess_captions(CaptionPlan(), files(tmp_path / "given"), tmp_path / "data")
    (tmp_path / "v.txt").write_text("a\n")
    for plan in (
        SubwordPlan(joint_vocabulary=True),
        SubwordPlan(words=True, source_vocabulary=str(tmp_path / "v.txt")),
    ):
        with pytest.raises(ConfigError, match="sources of this dataset are pictures"):
            learn_subwords(tmp_path / "data", plan)


def test_tokens_of_the_file_and_case() -> None:
    caption = Caption("A  Cat's -- toy , (old) !", ("A", "cats", ",", "toy"))
    assert CaptionPlan().words()(caption) == "a cat &apos;s toy old"
    assert CaptionPlan(lowercase=False).words()(caption) == "A Cat &apos;s toy old"
    assert CaptionPlan(tokenize="none").words()(caption) == "a cats , toy"
    assert CaptionPlan(tokenize="none").words()(Caption("A cat . 2")) == "a cat 2"


def test_long_captions_are_dropped_from_training_alone(tmp_path: Path) -> None:
    _, manifest = build(tmp_path, plan=CaptionPlan(max_words=2))
    splits = manifest["splits"]
    assert splits["train"]["dropped"] == {"empty": 1, "too_long": 2}
    assert splits["train"]["pictures_without_captions"] == 1
    assert splits["valid"]["dropped"] == {"empty": 0, "too_long": 0}


def _coco(folder: Path, count: int, **held_out: str) -> CaptionSources:
    write_json(folder / "c.json", coco({n: [f"picture {n}"] for n in range(count)}))
    save_tensors(folder / "f", {str(n): torch.full((1, 3), float(n)) for n in range(count + 5)})
    return CaptionSources(folder / "c.json", [folder / "f"], held_out)


def test_cocos_files_are_held_out_from(tmp_path: Path) -> None:
    """Two of ten, from the middle of each half: places 2 and 7; a file for the test."""
    write_json(tmp_path / "t.json", coco({11: ["eleven"], 12: ["twelve"]}))
    sources = _coco(tmp_path, 10, valid="2", test=str(tmp_path / "t.json"))
    dataset, manifest = build(tmp_path, sources)
    data = tmp_path / "data"
    assert lines(data, "pictures/valid.txt") == ["2", "7"]
    assert lines(data, "pictures/train.txt") == ["0", "1", "3", "4", "5", "6", "8", "9"]
    assert lines(data, "pictures/test.txt") == ["11", "12"]
    assert split_of(dataset, "test").batch([1]).source.tolist() == [[[12.0] * 3]]
    assert manifest["notes"] == {"features_without_captions": 3}


def _faults(folder: Path) -> list[tuple[CaptionSources, str]]:
    karpathy = files(folder / "k")
    whole = _coco(folder, 4)
    odd = {"images": [{**KARPATHY["images"][0], "split": "dev"}]}
    other = write_json(folder / "odd.json", odd)
    again = write_json(folder / "again.json", coco({1: ["x"]}))
    far = write_json(folder / "far.json", coco({1: ["x"], 77: ["y"]}))
    bare = write_json(folder / "bare.json", coco({1: ["!"], 2: []}))
    change = dataclasses.replace
    return [
        (change(karpathy, held_out={"valid": "2"}), "has splits of its own"),
        (change(whole, restval=True), "`--restval` belongs to Karpathy's"),
        (change(karpathy, captions=other), "its splits are `dev`"),
        (change(whole, held_out={"valid": "4"}), "`valid`: 4 of 4 pictures cannot be held"),
        (change(whole, held_out={"test": str(karpathy.captions)}), "one split is wanted"),
        (change(whole, held_out={"test": str(again)}), r"1 pictures .* twice: `1 \(train, test\)`"),
        (change(whole, captions=far), "1 of 2 pictures of `train` have no features: `77`"),
        (change(whole, captions=bare), r"no caption is left in `train`: 1 were read .*empty 1"),
    ]


@pytest.mark.parametrize("place", range(8))
def test_what_does_not_fit_is_told(tmp_path: Path, place: int) -> None:
    sources, words = _faults(tmp_path)[place]
    with pytest.raises((ConfigError, InputError), match=words):
        preprocess_captions(CaptionPlan(), sources, tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("change", [{"target_lang": "e n"}, {"max_words": 0}])
def test_faulty_plans(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        preprocess_captions(CaptionPlan(**change), files(tmp_path), tmp_path / "data")


def test_nan_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    sources = _coco(tmp_path, 3)
    bad = {str(n): torch.full((1, 3), float("nan") if n == 1 else 0.0) for n in range(3)}
    save_tensors(tmp_path / "f", bad)
    with pytest.raises(InputError, match="the picture `1` are not all finite"):
        preprocess_captions(CaptionPlan(), sources, tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir() if "data" in path.name] == []


def test_damage_is_found(tmp_path: Path) -> None:
    build(tmp_path)
    data = tmp_path / "data"
    path = data / "pictures/train.safetensors"
    held = path.read_bytes()
    path.write_bytes(held[:-1] + b"\x7f")
    with pytest.raises(StorageError, match="checksum differs"):
        Dataset.open(data)
    path.unlink()
    with pytest.raises(DataError, match=r"lacks `pictures/train\.safetensors`"):
        Dataset.open(data)


@pytest.mark.parametrize("source", [{"kind": "sound"}, {"kind": "features", "size": "3"}, 4])
def test_a_manifest_that_speaks_of_other_sources(tmp_path: Path, source: Any) -> None:
    build(tmp_path)
    values = json.loads((tmp_path / "data/manifest.json").read_text())
    del values["sha256"]
    manifests.write(tmp_path / "data", {**values, "source": source})
    with pytest.raises(StorageError, match="no features of pictures"):
        Dataset.open(tmp_path / "data")


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"features": torch.ones(6)}, "lacks"),
        ({"features": torch.ones(6), "offsets": [0, 3], "captions": [0, 1]}, "make no sense"),
        ({"features": torch.ones(6), "offsets": [0, 2], "captions": [0, 0]}, "make no sense"),
        ({"features": torch.ones(6).half(), "offsets": [0, 2], "captions": [0, 1]}, "type F32"),
    ],
)
def test_pictures_that_make_no_sense(tmp_path: Path, tensors: dict[str, Any], words: str) -> None:
    held = {name: torch.as_tensor(values) for name, values in tensors.items()}
    save_tensors(tmp_path / "p", held)
    with pytest.raises(StorageError, match=words):
        Pictures(tmp_path / "p", PictureSource(3, "F32"))


def test_features_of_another_size_are_refused() -> None:
    good = numpy.ones((2, 3), numpy.float32)
    assert check_size(good, 3) is good
    for bad in (good[:, :2], good[0], good[:0]):
        with pytest.raises(DataError, match="knows 3 features"):
            check_size(bad, 3)
