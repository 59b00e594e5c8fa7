"""Files of features: both layouts, three number types, and what is said of others."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from nmtgrid.base.errors import InputError
from nmtgrid.base.io.arrays import save_tensors
from nmtgrid.data.captioning.dataset import FeatureFiles, as_floats
from tests.unit.tiny_pictures import features


def written(
    path: Path, tensors: dict[str, Tensor], facts: dict[str, str] | None = None
) -> FeatureFiles:
    save_tensors(path / "f.safetensors", tensors, facts)
    return FeatureFiles([path / "f.safetensors"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_tensor_for_each_picture(tmp_path: Path, dtype: torch.dtype) -> None:
    """One of rank 1 is one region; halves are exact in all number types."""
    found = written(tmp_path, features(dtype))
    kinds = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    assert (found.size, found.kind) == (3, kinds[dtype])
    assert set(found.names) == set(features())
    for name, wanted in features().items():
        read = as_floats(found.read(name))
        assert read.tolist() == wanted.reshape(-1, 3).tolist()
    assert found.find(["10", "a10.jpg", "a10"]) == "a10.jpg"
    assert found.find(["10"]) is None


@pytest.mark.parametrize("named", ["ids", "facts"])
def test_all_in_one_tensor(tmp_path: Path, named: str) -> None:
    held = {"features": torch.arange(12.0).view(4, 3), "offsets": torch.tensor([0, 1, 4])}
    if named == "ids":
        found = written(tmp_path, {**held, "ids": torch.tensor([40, 7], dtype=torch.int32)})
        assert found.names == ["40", "7"]
    else:
        found = written(tmp_path, held, {"ids": '["x.jpg", 7]'})
        assert found.names == ["x.jpg", "7"]
    assert found.read("7").tolist() == [[3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_bits_of_bfloat16() -> None:
    """0x3FC0 is 1.5, 0xC000 is -2."""
    assert as_floats(numpy.array([0x3FC0, 0xC000], numpy.uint16)).tolist() == [1.5, -2.0]


ONE = torch.ones(2, 3)
FLAT = {"features": torch.ones(4, 3), "offsets": torch.tensor([0, 1, 4])}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"a": ONE, "b": torch.ones(2, 4)}, "`b` has 4 features of F32, others have 3"),
        ({"a": ONE, "b": ONE.half()}, "others have 3 of F"),
        ({"a": torch.ones(2, 2, 3)}, r"1 of 1 tensors are no features .*`a` \(F32 \[2, 2, 3\]\)"),
        ({"a": ONE, "b": torch.ones(2, 3, dtype=torch.int64)}, r"`b` \(I64 \[2, 3\]\)"),
        ({"a": torch.ones(0, 3)}, "are no features"),
        ({}, "no features in it"),
        ({"features": torch.ones(4)}, "with `offsets` beside it"),
        ({"features": torch.ones(4, 3)}, "with `offsets` beside it"),
        (FLAT, "no `ids`"),
        ({**FLAT, "ids": torch.tensor([1, 2, 3])}, "`offsets` must rise from 0 to 4"),
        ({**FLAT, "ids": torch.tensor([1.0, 2.0])}, "`ids` must be a list of whole numbers"),
        ({**FLAT, "ids": torch.tensor([4, 4])}, "`4` has features twice"),
        (
            {**FLAT, "offsets": torch.tensor([0, 0, 4]), "ids": torch.tensor([1, 2])},
            "`offsets` must rise",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, tensors: dict[str, Tensor], words: str) -> None:
    with pytest.raises(InputError, match=words):
        written(tmp_path, tensors)


@pytest.mark.parametrize(
    "entry",
    [
        {"shape": [-2, -3], "data_offsets": [0, 24]},
        {"shape": [2, 3], "data_offsets": [0.5, 24.5]},
        {"shape": [2, 3], "data_offsets": [-24, 0]},
        {"shape": [2, 3], "data_offsets": [24, 0]},
        {"shape": [2, 3.0], "data_offsets": [0, 24]},
    ],
    ids=str,
)
def test_headers_that_make_no_sense(tmp_path: Path, entry: dict[str, Any]) -> None:
    header = json.dumps({"a": {"dtype": "F32", **entry}}).encode()
    path = tmp_path / "f"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(24))
    with pytest.raises(InputError, match=r"makes no sense|its shape|is damaged"):
        FeatureFiles([path])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_picture_with_features_that_are_not_finite(
    tmp_path: Path, value: float, dtype: torch.dtype
) -> None:
    bad = ONE.clone()
    bad[1, 2] = value
    found = written(tmp_path, {"good": ONE.to(dtype), "bad": bad.to(dtype)})
    assert len(found.read("good")) == 2
    with pytest.raises(InputError, match="the picture `bad` are not all finite"):
        found.read("bad")


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
