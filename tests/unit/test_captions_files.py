"""Captions files: both public layouts, and what is said of those that are neither."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.base.errors import InputError
from nmtgrid.data.captioning.coco import Caption, CaptionedPicture, list_names, read_captions
from tests.unit.tiny_pictures import KARPATHY, coco, write_json


def test_karpathys_layout(tmp_path: Path) -> None:
    found = read_captions(write_json(tmp_path / "k.json", KARPATHY))
    assert {name: len(held) for name, held in found.items()} == {
        "train": 2, "restval": 1, "val": 1, "test": 1,
    }  # fmt: skip
    assert found["train"][0] == CaptionedPicture(
        ("9", "a9.jpg", "a9"), (Caption("A cat.", ("a", "cat")), Caption("One cat sits"))
    )


def test_numbers_of_the_file_name_no_features_where_pictures_have_their_own(tmp_path: Path) -> None:
    """COCO's number 7 is another picture than the file's seventh; Flickr's have none but these."""
    one = {"cocoid": 100, "imgid": 7, "filename": "b.jpg", "split": "train", "sentences": []}
    other = {"imgid": 8, "filename": "c.jpg", "split": "train", "sentences": []}
    found = read_captions(write_json(tmp_path / "coco.json", {"images": [one, other]}))
    assert [picture.keys for picture in found["train"]] == [("100", "b.jpg", "b"), ("c.jpg", "c")]
    found = read_captions(write_json(tmp_path / "flickr.json", {"images": [other]}))
    assert found["train"][0].keys == ("c.jpg", "c", "8")


def test_cocos_own_layout(tmp_path: Path) -> None:
    values = coco({7: ["One.", "Two."], 8: []})
    values["annotations"].append({"image_id": 7, "caption": "Three."})
    found = read_captions(write_json(tmp_path / "c.json", values))
    texts = tuple(Caption(text) for text in ("One.", "Two.", "Three."))
    assert found == {
        "": [CaptionedPicture(("7", "7.jpg"), texts), CaptionedPicture(("8", "8.jpg"), ())]
    }


def _without(place: int, field: str) -> dict[str, Any]:
    values = copy.deepcopy(KARPATHY)
    del values["images"][place][field]
    return values


def _with(sentence: Any) -> dict[str, Any]:
    values: dict[str, Any] = copy.deepcopy(KARPATHY)
    values["images"][1]["sentences"].append(sentence)
    return values


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "no list `images`"),
        ({"images": [3]}, "no list `images`"),
        ({"images": []}, "is empty"),
        (_without(2, "split"), r"images\[2\] lacks a `split`"),
        (_without(3, "sentences"), r"images\[3\] lacks"),
        (_with({"tokens": ["a"]}), r"images\[1\].sentences\[2\] lacks a text `raw`"),
        (_with({"raw": "a", "tokens": [1]}), r"images\[1\].sentences\[2\] lacks"),
        (_with({"raw": "half \ud83d"}), r"images\[1\].sentences\[2\] lacks a text `raw`"),
        (_with({"raw": "a", "tokens": ["\udc00"]}), r"images\[1\].sentences\[2\] lacks"),
        ({"images": [{"id": "\ud83d"}], "annotations": []}, r"images\[0\] lacks an `id`"),
        ({"images": [*KARPATHY["images"], KARPATHY["images"][0]]}, "`9` stands twice"),
        ({"images": [{"file_name": "x"}], "annotations": []}, r"images\[0\] lacks an `id`"),
        ({"images": [{"id": 1}, {"id": 1}], "annotations": []}, "`1` stands twice"),
        ({"images": [{"id": 1}], "annotations": [{"image_id": 1}]}, r"annotations\[0\] lacks"),
        (
            {"images": [{"id": 1}], "annotations": [{"image_id": 2, "caption": "x"}]},
            r"annotations\[0\] is of the picture `2`",
        ),
    ],
)
def test_what_is_missing_is_named_with_its_place(tmp_path: Path, values: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_captions(write_json(tmp_path / "bad.json", values))


def test_broken_json_is_told_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text('{"images":\n [{"id": 1}, \n', encoding="utf-8")
    with pytest.raises(InputError, match=r"cut.json:3: it is not JSON: .* at column 1"):
        read_captions(path)
    path.write_bytes(b'{"images": "\xff"}')
    with pytest.raises(InputError, match="not JSON"):
        read_captions(path)
    with pytest.raises(Exception, match=r"none.json is missing"):
        read_captions(tmp_path / "none.json")


def test_names_in_messages() -> None:
    assert list_names(["a", "b"]) == "`a`, `b`"
    assert list_names([str(n) for n in range(1200)]).endswith("`4` and 1,195 more")
