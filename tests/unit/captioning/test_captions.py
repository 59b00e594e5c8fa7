"""Captions: both public layouts, files of features, datasets, and models by their equations."""

from __future__ import annotations

import copy
import dataclasses
import json
import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from nmtgrid.base.errors import ConfigError, DataError, InputError, StorageError, list_names
from nmtgrid.base.io.arrays import save_tensors
from nmtgrid.data import directory as manifests
from nmtgrid.data.batches import Batch
from nmtgrid.data.captioning.build import CaptionPlan, CaptionSources, preprocess_captions
from nmtgrid.data.captioning.coco import Caption, CaptionedPicture, read_captions
from nmtgrid.data.captioning.dataset import (
    FeatureFiles,
    Pictures,
    PictureSource,
    as_floats,
    check_size,
)
from nmtgrid.data.dataset import Dataset
from nmtgrid.data.subwords import SubwordPlan, learn_subwords
from nmtgrid.layers.recurrent.top_down import (
    TopDownWeights,
    attend_additively,
    attend_additively_backward,
    run_top_down,
)
from nmtgrid.layers.source_cache import SourceCache
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.models.captioning.model import CaptionLSTM
from nmtgrid.models.captioning.top_down import CaptionTopDown
from nmtgrid.text.vocabulary import END, PAD
from tests.invariants.helpers import batch_for, teacher_forced
from tests.unit.captioning.tiny_pictures import (
    KARPATHY,
    build,
    coco,
    features,
    files,
    lines,
    split_of,
    write_json,
)
from tests.unit.helpers.toy_model import count_parameters


def test_both_layouts(tmp_path: Path) -> None:
    def read(values: Any) -> dict[str, list[CaptionedPicture]]:
        return read_captions(write_json(tmp_path / "k.json", values))

    splits = read(KARPATHY)
    assert {name: len(pictures) for name, pictures in splits.items()} == {
        "train": 2, "restval": 1, "val": 1, "test": 1,
    }  # fmt: skip
    assert splits["train"][0] == CaptionedPicture(
        ("9", "a9.jpg", "a9"), (Caption("A cat.", ("a", "cat")), Caption("One cat sits"))
    )
    values = coco({7: ["One.", "Two."], 8: []})
    values["annotations"].append({"image_id": 7, "caption": "Three."})
    texts = tuple(Caption(text) for text in ("One.", "Two.", "Three."))
    assert read(values) == {
        "": [CaptionedPicture(("7", "7.jpg"), texts), CaptionedPicture(("8", "8.jpg"), ())]
    }
    # COCO's number 7 is another picture than the file's seventh; Flickr's have none but these.
    numbered = {"cocoid": 100, "imgid": 7, "filename": "b.jpg", "split": "train", "sentences": []}
    other = {"imgid": 8, "filename": "c.jpg", "split": "train", "sentences": []}
    train = read({"images": [numbered, other]})["train"]
    assert [picture.keys for picture in train] == [("100", "b.jpg", "b"), ("c.jpg", "c")]
    assert read({"images": [other]})["train"][0].keys == ("c.jpg", "c", "8")


def _changed(index: int, without: str = "", sentence: Any = None) -> dict[str, Any]:
    values: dict[str, Any] = copy.deepcopy(KARPATHY)
    values["images"][index].pop(without, None)
    if sentence is not None:
        values["images"][index]["sentences"].append(sentence)
    return values


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "must be an object"),
        ({"images": [3]}, r"`images\[0\]` must be an object"),
        ({"images": []}, "is empty"),
        (_changed(2, "split"), r"`images\[2\]\.split` is missing"),
        (_changed(3, "sentences"), r"`images\[3\]\.sentences` is missing"),
        (_changed(1, "", {"tokens": ["a"]}), r"images\[1\].sentences\[2\].raw` is missing"),
        (_changed(1, "", {"raw": "a", "tokens": [1]}), r"images\[1\].sentences\[2\].tokens\[0\]"),
        (_changed(1, "", {"raw": "half \ud83d"}), "surrogate pair at column"),
        (_changed(1, "", {"raw": "a", "tokens": ["\udc00"]}), "surrogate pair at column"),
        ({"images": [{"id": "\ud83d"}], "annotations": []}, "surrogate pair at column"),
        ({"images": [*KARPATHY["images"], KARPATHY["images"][0]]}, "`9` occurs twice"),
        ({"images": [{"file_name": "x"}], "annotations": []}, r"`images\[0\]\.id` is missing"),
        ({"images": [{"id": 1}, {"id": 1}], "annotations": []}, "`1` occurs twice"),
        ({"images": [{"id": 1}], "annotations": [{"image_id": 1}]}, r"annotations\[0\]\.caption"),
        (
            coco({1: []}) | {"annotations": [{"image_id": 2, "caption": "x"}]},
            r"annotations\[0\] refers to the picture `2`",
        ),
    ],
)
def test_what_is_missing_is_named_with_its_place(tmp_path: Path, values: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_captions(write_json(tmp_path / "bad.json", values))


def test_broken_json_is_told_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text('{"images":\n [{"id": 1}, \n}', encoding="utf-8")
    with pytest.raises(InputError, match=r"cut.json: it is not JSON \(.* at line 3, column 1\)"):
        read_captions(path)
    path.write_bytes(b'{"images": "\xff"}')
    with pytest.raises(InputError, match="not JSON"):
        read_captions(path)
    with pytest.raises(Exception, match=r"none.json is missing"):
        read_captions(tmp_path / "none.json")
    assert list_names(["a", "b"]) == "`a`, `b`"
    assert list_names([str(n) for n in range(1200)]).endswith("`4` and 1,195 more")


def written(path: Path, tensors: dict[str, Tensor], facts: Any = None) -> FeatureFiles:
    save_file(tensors, path / "f.safetensors", facts)
    return FeatureFiles([path / "f.safetensors"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_tensor_for_each_picture(tmp_path: Path, dtype: torch.dtype) -> None:
    """One of rank 1 is one region; halves are exact in all number types."""
    files = written(tmp_path, features(dtype))
    kinds = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    assert (files.size, files.kind) == (3, kinds[dtype])
    assert set(files.names) == set(features())
    for name, expected in features().items():
        assert as_floats(files.read(name)).tolist() == expected.reshape(-1, 3).tolist()
    assert files.find(["10", "a10.jpg", "a10"]) == ["a10.jpg"] and files.find(["10"]) == []


@pytest.mark.parametrize("named", ["ids", "facts"])
def test_all_in_one_tensor(tmp_path: Path, named: str) -> None:
    tensors = {"features": torch.arange(12.0).view(4, 3), "offsets": torch.tensor([0, 1, 4])}
    ids = {"ids": torch.tensor([40, 7], dtype=torch.int32)} if named == "ids" else {}
    files = written(tmp_path, tensors | ids, None if ids else {"ids": '["x.jpg", 7]'})
    assert files.names == ["40" if ids else "x.jpg", "7"]
    assert files.read("7").tolist() == [[3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_bits_of_bfloat16_and_sizes_of_features() -> None:
    """0x3FC0 is 1.5, 0xC000 is -2."""
    assert as_floats(numpy.array([0x3FC0, 0xC000], numpy.uint16)).tolist() == [1.5, -2.0]
    good = numpy.ones((2, 3), numpy.float32)
    assert check_size(good, 3) is good
    for bad in (good[:, :2], good[0], good[:0]):
        with pytest.raises(DataError, match="expects 3 features"):
            check_size(bad, 3)


ONE = torch.ones(2, 3)
FALLING = torch.tensor([0, 3, 1, 4], dtype=torch.uint64)
FLAT = {"features": torch.ones(4, 3), "offsets": torch.tensor([0, 1, 4])}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"a": ONE, "b": torch.ones(2, 4)}, "`b` has 4 features of F32, others have 3"),
        ({"a": ONE, "b": ONE.half()}, "others have 3 of F"),
        ({"a": torch.ones(2, 2, 3)}, r"1 of 1 tensors are not features .*`a` \(F32 \[2, 2, 3\]\)"),
        ({"a": ONE, "b": torch.ones(2, 3, dtype=torch.int64)}, r"`b` \(I64 \[2, 3\]\)"),
        ({"a": torch.ones(0, 3)}, "are not features"),
        ({}, "contains no features"),
        ({"features": torch.ones(4)}, "and a tensor `offsets`"),
        ({"features": torch.ones(4, 3)}, "and a tensor `offsets`"),
        (FLAT, "no `ids`"),
        ({**FLAT, "ids": torch.tensor([1, 2, 3])}, "`offsets` must increase from 0 to 4"),
        ({**FLAT, "ids": torch.tensor([1.0, 2.0])}, "`ids` must be a list of whole numbers"),
        ({**FLAT, "ids": torch.tensor([4, 4])}, "`4` has features twice"),
        (
            {**FLAT, "offsets": torch.tensor([0, 0, 4]), "ids": torch.arange(2)},
            "`offsets` must increase",
        ),
        # Differences of unsigned numbers never fall below zero.
        ({**FLAT, "offsets": FALLING, "ids": torch.arange(3)}, "`offsets` must increase"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, tensors: dict[str, Tensor], words: str) -> None:
    with pytest.raises(InputError, match=words):
        written(tmp_path, tensors)


def test_headers_that_make_no_sense(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for shape, offsets in (
        ([-2, -3], [0, 24]),
        ([2, 3], [0.5, 24.5]),
        ([2, 3], [-24, 0]),
        ([2, 3], [24, 0]),
        ([2, 3.0], [0, 24]),
    ):
        entry = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
        header = json.dumps({"a": entry}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(24))
        with pytest.raises(InputError, match=r"makes no sense|its shape|is damaged"):
            FeatureFiles([path])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_features_that_are_not_finite(tmp_path: Path, value: float, dtype: torch.dtype) -> None:
    bad = ONE.clone()
    bad[1, 2] = value
    files = written(tmp_path, {"good": ONE.to(dtype), "bad": bad.to(dtype)})
    assert len(files.read("good")) == 2
    with pytest.raises(InputError, match="the picture `bad` are not all finite"):
        files.read("bad")


def test_several_files_and_what_is_no_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_tensors(tmp_path / name, {name: ONE})
    assert FeatureFiles([tmp_path / "b", tmp_path / "a"]).names == ["b", "a"]
    with pytest.raises(InputError, match="`a` has features twice"):
        FeatureFiles([tmp_path / "a", tmp_path / "a"])
    (tmp_path / "text").write_text("no tensors here, but words")
    with pytest.raises(InputError, match="text is damaged"):
        FeatureFiles([tmp_path / "text"])
    with pytest.raises(InputError, match="nothing is missing"):
        FeatureFiles([tmp_path / "nothing"])


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

    # What is called `restval` trains if asked.
    _, manifest = build(tmp_path / "b", dataclasses.replace(files(tmp_path), restval=True))
    assert lines(tmp_path / "b/data", "pictures/train.txt") == ["9", "a10.jpg", "a11"]
    assert manifest["notes"] == {"restval": 0, "features_without_captions": 0}


def test_training_has_captions_and_validation_pictures(tmp_path: Path) -> None:
    """Two captions of picture 9 (one region), one of picture 10 (two regions)."""
    dataset, _ = build(tmp_path)
    train = split_of(dataset, "train")
    assert len(train) == 3 and train.source_lengths.tolist() == [1, 1, 2]
    assert train.target_lengths.tolist() == [2, 3, 3]
    batch = train.batch([2, 0])
    assert batch.source.dtype == torch.float32
    assert batch.source.tolist() == [[[0, 1, 2], [3, 4, 5]], [[0, 1, 2], [0, 0, 0]]]
    assert batch.source_lengths.tolist() == [2, 1]
    decode = dataset.pipeline.target_vocabulary.decode
    assert decode(batch.target_output[0]) == ["a", "dog", "runs", "</s>"]
    assert batch.target_output[1].tolist()[2:] == [END, PAD] and batch.references is not None
    assert [decode(row) for row in batch.references[1]] == [
        ["a", "cat", "<pad>"], ["one", "cat", "sits"],
    ]  # fmt: skip
    assert decode(batch.references[0, 1]) == ["<pad>"] * 3
    valid = split_of(dataset, "valid")
    assert len(valid) == 1 and valid.source_lengths.tolist() == [3]
    assert valid.tokenized_target() == ["a dog"] and valid.raw_target() == ["A dog."]
    assert valid.references() == [["a dog", "the dog &apos;s bone", "a cat"]]
    whole = valid.batch([0])
    assert whole.references is not None and whole.references.shape == (1, 3, 4)
    part = whole.select(torch.tensor([0])).to(torch.device("cpu"))
    assert part.references is not None and part.references.equal(whole.references)
    for read in (valid.raw_source, valid.tokenized_source, lambda: valid.source(0)):
        with pytest.raises(DataError, match="pictures as sources, not text"):
            read()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_features_stay_as_they_were_given(tmp_path: Path, dtype: torch.dtype) -> None:
    dataset, manifest = build(tmp_path, files(tmp_path / "given", dtype))
    assert manifest["source"]["type"] == {torch.float16: "F16", torch.bfloat16: "BF16"}[dtype]
    assert (tmp_path / "data/pictures/test.safetensors").stat().st_size < 600
    assert split_of(dataset, "test").batch([0]).source.tolist() == [[[-1.5] * 3] * 2]


def test_units_of_captions(tmp_path: Path) -> None:
    dataset, _ = build(tmp_path, units=SubwordPlan(merges=3))
    assert dataset.pipeline.target.codes is not None
    assert len(dataset.pipeline.source_vocabulary) == 4 + 3
    train = split_of(dataset, "train")
    assert dataset.pipeline.restore_tokenized(train.target(0)) == "a cat"
    caption = Caption("A  Cat's -- toy , (old) !", ("A", "cats", ",", "toy"))
    assert CaptionPlan().words()(caption) == "a cat &apos;s toy old"
    assert CaptionPlan(lowercase=False).words()(caption) == "A Cat &apos;s toy old"
    assert CaptionPlan(tokenize="none").words()(caption) == "a cats , toy"
    turkish = Caption("ISPARTA IŞIK")
    assert CaptionPlan(target_lang="tr").words()(turkish) == "ısparta ışık"
    assert CaptionPlan().words()(turkish) == "isparta işik"
    assert CaptionPlan(tokenize="none").words()(Caption("A cat . 2")) == "a cat 2"


def test_units_of_pictures_are_refused(tmp_path: Path) -> None:
    preprocess_captions(CaptionPlan(), files(tmp_path / "given"), tmp_path / "data")
    (tmp_path / "v.txt").write_text("a\n")
    for plan in (
        SubwordPlan(joint_vocabulary=True),
        SubwordPlan(joint=False),
        SubwordPlan(words=True, source_vocabulary=str(tmp_path / "v.txt")),
    ):
        with pytest.raises(ConfigError, match="sources of this dataset are pictures"):
            learn_subwords(tmp_path / "data", plan)


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


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    karpathy = files(tmp_path / "k")
    whole = _coco(tmp_path, 4)
    odd = {"images": [{**KARPATHY["images"][0], "split": "dev"}]}
    other = write_json(tmp_path / "odd.json", odd)
    again = write_json(tmp_path / "again.json", coco({1: ["x"]}))
    far = write_json(tmp_path / "far.json", coco({1: ["x"], 77: ["y"]}))
    bare = write_json(tmp_path / "bare.json", coco({1: ["!"], 2: []}))
    change = dataclasses.replace
    cases = [
        (change(karpathy, held_out={"valid": "2"}), "defines its own splits"),
        (change(whole, restval=True), "`--restval` needs Karpathy's"),
        (change(karpathy, captions=other), "the splits are `dev`"),
        (change(whole, held_out={"valid": "4"}), "`valid`: cannot hold out 4 of 4 pictures"),
        (change(whole, held_out={"test": str(karpathy.captions)}), "a single split is needed"),
        (change(whole, held_out={"test": str(again)}), r"1 pictures .* twice: `1 \(train, test\)`"),
        (change(whole, captions=far), "1 of 2 pictures of `train` have no features: `77`"),
        (change(whole, captions=bare), r"no caption is left in `train`: 1 were read .*empty 1"),
    ]
    for sources, words in cases:
        with pytest.raises((ConfigError, InputError), match=words):
            preprocess_captions(CaptionPlan(), sources, tmp_path / "data")
        assert not (tmp_path / "data").exists()

    wordy = change(whole, captions=write_json(tmp_path / "wordy.json", coco({1: ["x y"]})))
    with pytest.raises(InputError, match=r"too long 1\).* more words than `--max-words 1`"):
        preprocess_captions(CaptionPlan(max_words=1), wordy, tmp_path / "data")

    for plan in (CaptionPlan(target_lang="e n"), CaptionPlan(max_words=0)):
        with pytest.raises(ConfigError, match="must be"):
            preprocess_captions(plan, karpathy, tmp_path / "data")


def test_features_under_two_names_of_a_picture(tmp_path: Path) -> None:
    """Ids that count from 1 are stems of the files of other pictures, which count from 0."""
    images = [{"id": n + 1, "file_name": f"{n}.jpg"} for n in range(6)]
    notes = [{"image_id": n + 1, "caption": f"file {n} here"} for n in range(6)]
    captions = write_json(tmp_path / "c.json", {"images": images, "annotations": notes})
    by_stem = {str(n): torch.full((1, 2), float(n)) for n in range(7)}
    save_tensors(tmp_path / "stems", by_stem)
    sources = CaptionSources(captions, [tmp_path / "stems"], {"valid": "2"})
    with pytest.raises(InputError, match=r"under several of their names: `1 = 0`"):
        preprocess_captions(CaptionPlan(), sources, tmp_path / "data")
    assert not (tmp_path / "data").exists()
    save_tensors(tmp_path / "files", {f"{name}.jpg": by_stem[name] for name in by_stem})
    sources = dataclasses.replace(sources, features=[tmp_path / "files"])
    preprocess_captions(CaptionPlan(), sources, tmp_path / "data")


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
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(StorageError, match="checksum differs"):
        Dataset.open(data)
    path.unlink()
    with pytest.raises(DataError, match=r"lacks `pictures/train\.safetensors`"):
        Dataset.open(data)


def test_a_manifest_that_speaks_of_other_sources(tmp_path: Path) -> None:
    build(tmp_path)
    values = json.loads((tmp_path / "data/manifest.json").read_text())
    del values["sha256"]
    for source in ({"kind": "sound"}, {"kind": "features", "size": "3"}, 4):
        manifests.write(tmp_path / "data", {**values, "source": source})
        with pytest.raises(StorageError, match=r"manifest\.json is damaged: .*`source"):
            Dataset.open(tmp_path / "data")


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"features": torch.ones(6)}, "lacks"),
        ({"features": torch.ones(6), "offsets": [0, 3], "captions": [0, 1]}, "are inconsistent"),
        ({"features": torch.ones(6), "offsets": [0, 2], "captions": [0, 0]}, "are inconsistent"),
        (
            {"features": torch.ones(12), "offsets": FALLING, "captions": [0, 1, 2, 3]},
            "are inconsistent",
        ),
        ({"features": torch.ones(6).half(), "offsets": [0, 2], "captions": [0, 1]}, "type F32"),
    ],
)
def test_pictures_that_make_no_sense(tmp_path: Path, tensors: dict[str, Any], words: str) -> None:
    saved = {name: torch.as_tensor(values) for name, values in tensors.items()}
    save_tensors(tmp_path / "p", saved)
    with pytest.raises(StorageError, match=words):
        Pictures(tmp_path / "p", PictureSource(3, "F32"))


F, V = 5, 11
SMALL: dict[str, Any] = {"size": 6, "embedding_size": 4}


def build_model(arch: str, **settings: Any) -> TranslationModel:
    return zoo.build(
        arch, overrides={**SMALL, **settings}, source_vocab_size=F + 4, target_vocab_size=V
    ).eval()


def regions(batch: Batch, row: int) -> Tensor:
    return batch.source[row, : int(batch.source_lengths[row])]


def logits(model: TranslationModel, state: Tensor) -> Tensor:
    classifier = model.classifier()
    assert classifier.bias is not None
    return state @ classifier.weight.t() + classifier.bias


@torch.no_grad()
@pytest.mark.parametrize("picture", ["input", "state"])
def test_an_lstm_that_sees_the_mean_region_first(picture: str) -> None:
    """x_-1 = W v + b and x_t = W_e y_t through one LSTM; or W v + b are its first states."""
    model = build_model("caption-lstm", picture=picture, depth=1)
    assert isinstance(model, CaptionLSTM)
    batch = batch_for(model, (3, 0), (4, 2))
    actual = teacher_forced(model, batch)
    cell = model.cells[0]
    assert isinstance(cell, nn.LSTMCell)
    for row in range(2):
        shown = model.picture_map(regions(batch, row).mean(0, keepdim=True))
        states = cell(shown) if picture == "input" else (shown[:, :6], shown[:, 6:])
        for index in range(int(batch.target_lengths[row])):
            words = model.target_embedding.weight[batch.target_input[row, index]][None]
            states = cell(words, states)
            expected = logits(model, states[0]).log_softmax(1)[0]
            torch.testing.assert_close(actual[row, index], expected)


@torch.no_grad()
def test_top_down_attention_by_its_equations() -> None:
    """Eq. (2) to (7) of Anderson et al. (2018), region by region."""
    model = build_model("caption-top-down", attention_size=3)
    assert isinstance(model, CaptionTopDown)
    batch = batch_for(model, (3, 0, 5), (4, 2, 3))
    actual, shares = teacher_forced(model, batch), model.alignments(batch)
    for row in range(3):
        seen = regions(batch, row)
        first = second = (torch.zeros(1, 6), torch.zeros(1, 6))
        for index in range(int(batch.target_lengths[row])):
            words = model.target_embedding.weight[batch.target_input[row, index]][None]
            mean = seen.mean(0, keepdim=True)
            first = model.attention_lstm(torch.cat([second[0], mean, words], 1), first)
            query = model.query_map.weight @ first[0][0]
            scores = [model.score @ torch.tanh(model.region_map.weight @ v + query) for v in seen]
            weights = torch.stack(scores).softmax(0)
            read = (weights[:, None] * seen).sum(0, keepdim=True)
            second = model.language_lstm(torch.cat([read, first[0]], 1), second)
            expected = logits(model, second[0]).log_softmax(1)[0]
            torch.testing.assert_close(actual[row, index], expected)
            torch.testing.assert_close(shares[row, index, : len(seen)], weights)


def test_parameters_by_hand() -> None:
    """2048 features, 9,804 types, d = 512."""
    picture, embeddings = 2048 * 512 + 512, 9804 * 512
    lstm = 4 * 512 * (512 + 512) + 2 * 4 * 512
    expected = picture + embeddings + lstm + (9804 * 512 + 9804)
    count = partial(count_parameters, "caption-lstm", "mscoco", 2048 + 4, 9804)
    assert count() == expected == 13_199_436 and count(tie="target") == expected - embeddings
    assert count(picture="state") == expected + picture and count(depth=2) == expected + lstm
    # 2048 features, 9,804 types, M = E = 1000, H = 512.
    embeddings = 9804 * 1000
    attention_lstm = 4 * 1000 * (1000 + 2048 + 1000 + 1000) + 2 * 4 * 1000
    attention = 512 * 2048 + 512 * 1000 + 512
    language_lstm = 4 * 1000 * (2048 + 1000 + 1000) + 2 * 4 * 1000
    expected = embeddings + attention_lstm + attention + language_lstm + (9804 * 1000 + 9804)
    count = partial(count_parameters, "caption-top-down", "mscoco", 2048 + 4, 9804)
    assert count() == expected == 57_578_892 and count(output_bias=False) == expected - 9804

    # Embeddings of 4, states of 6: a map of 4 x 6 without a bias.
    tied, own = build_model("caption-lstm", tie="target"), build_model("caption-lstm")
    assert tied.count_parameters() == own.count_parameters() - V * 6 + 4 * 6
    assert tied.classifier().weight.shape == (V, 4)


def test_reported_costs() -> None:
    lstm = build_model("caption-lstm", depth=1).report(3, 5).flops_per_pair
    assert lstm == 6 * (F * 4 + (6 * (4 * 6 * (4 + 6)) + 5 * V * 6))
    top = build_model("caption-top-down", attention_size=3).report(3, 5).flops_per_pair
    attention_lstm, language_lstm = 24 * (6 + 4 + 6), 24 * (F + 6 + 6)
    position = attention_lstm + language_lstm + 3 * 6 + V * 6
    assert top == 6 * (24 * F + 3 * F * 3 + 5 * position + (3 + F) * 3 * 5)


def test_what_is_refused() -> None:
    for arch in ("caption-lstm", "caption-top-down"):
        with pytest.raises(ConfigError, match="4 special symbols: a size of 4 leaves none"):
            zoo.build(arch, source_vocab_size=4, target_vocab_size=V)
    model = build_model("caption-top-down")
    batch = batch_for(model, (3,), (4,))
    with pytest.raises(ConfigError, match="no energies"):
        model.alignments(batch, "energies")
    sites = PredictionSites.offline(batch)
    deep = PredictionSites(sites.sentence, sites.position, depth=torch.ones_like(sites.position))
    with pytest.raises(ConfigError, match="one exit"):
        model.features(batch, deep)


@pytest.mark.parametrize(
    ("arch", "settings", "words"),
    [
        ("caption-lstm", {"depth": 0, "dropout": 1.0}, "`model.depth` must be from 1 to 100"),
        ("caption-lstm", {"depth": 101}, "from 1 to 100, but is 101"),
        ("caption-lstm", {"size": 0}, "`model.size` must be at least 1"),
        ("caption-lstm", {"embedding_size": 0}, "`model.embedding_size`"),
        ("caption-lstm", {"picture": "both"}, "`model.picture`|picture"),
        ("caption-top-down", {"attention_size": 0}, "`model.attention_size` must be at least 1"),
        (
            "caption-top-down",
            {"output_dropout": -0.1},
            "`model.output_dropout` must be at least 0 and below 1",
        ),
        (
            "caption-top-down",
            {"embedding_dropout": 1},
            "`model.embedding_dropout` must be at least 0 and below 1",
        ),
    ],
)
def test_faulty_settings(arch: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_model(arch, **settings)


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("caption-lstm", "dropout"), ("caption-lstm", "embedding_dropout"),
        ("caption-lstm", "output_dropout"), ("caption-top-down", "embedding_dropout"),
        ("caption-top-down", "output_dropout"),
    ],
)  # fmt: skip
def test_dropout_works_in_training_alone(arch: str, name: str) -> None:
    off = {"output_dropout": 0.0, "embedding_dropout": 0.0}
    if arch == "caption-lstm":
        off |= {"dropout": 0.0, "depth": 2}
    model = build_model(arch, **{**off, name: 0.5})
    batch = batch_for(model, (3, 2), (4, 5))
    sites = PredictionSites.offline(batch)
    assert torch.equal(model.features(batch, sites), model.features(batch, sites))
    model.train()
    assert not torch.equal(model.features(batch, sites), model.features(batch, sites))


@pytest.mark.parametrize("is_masked", [False, True])
def test_the_gradient_of_additive_attention(is_masked: bool) -> None:
    shapes = ((2, 3, 5), (2, 4, 5), (5,))
    query, keys, weight = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes)
    values, of_read = (torch.randn(2, n, 6, dtype=torch.float64) for n in (4, 3))
    hide = torch.zeros(2, 1, 4, dtype=torch.float64)
    hide[0, 0, 2:] = -torch.inf
    mask = hide if is_masked else None
    scores = torch.tanh(query[:, :, None] + keys[:, None]) @ weight
    expected = (scores if mask is None else scores + mask).softmax(-1)
    wanted_read = torch.einsum("bqs,bsf->bqf", expected, values)
    with torch.no_grad():
        read, shares = attend_additively(query, keys, values, weight, mask)
        actual = attend_additively_backward(of_read, query, keys, values, weight, shares)
    torch.testing.assert_close(read, wanted_read)
    torch.testing.assert_close(shares, expected)
    assert bool((shares[0, :, 2:] == 0).all()) is is_masked
    gradients = torch.autograd.grad((wanted_read * of_read).sum(), (query, keys, weight))
    torch.testing.assert_close(actual, gradients)


@pytest.mark.parametrize("is_masked", [False, True])
def test_the_gradient_of_top_down_attention(is_masked: bool) -> None:
    positions, pictures, seen, size, compared = 3, 2, 3, 2, 4
    shapes = (
        (positions, pictures, 4 * size), (pictures, seen, compared), (4 * size, 2 * size),
        (compared, size), (compared,), (4 * size, F + 2 * size), (4 * size,),
    )  # fmt: skip
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    regions = torch.randn(pictures, 1, seen, F, dtype=torch.float64)
    hide = torch.zeros(pictures, 1, 1, seen, dtype=torch.float64)
    hide[0, :, :, 2:] = -torch.inf

    def run(below: Tensor, keys: Tensor, *weights: Tensor) -> Tensor:
        memory = SourceCache((keys[:, None],), (regions,), hide if is_masked else None)
        return run_top_down(below, memory, TopDownWeights(*weights))[0]

    assert torch.autograd.gradcheck(run, inputs)


@pytest.mark.parametrize("arch", ["caption-lstm", "caption-top-down"])
def test_bf16_is_near(arch: str) -> None:
    model = build_model(arch)
    batch = batch_for(model, (3, 2), (4, 5))
    expected = teacher_forced(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        actual = teacher_forced(model, batch)
        state = model.begin(batch.source, batch.source_lengths)
        first = model.step(batch.target_input[:, 0], state).logits.float().log_softmax(1)
    assert (actual - expected).abs().max() < 0.05 and (first - expected[:, 0]).abs().max() < 0.05
