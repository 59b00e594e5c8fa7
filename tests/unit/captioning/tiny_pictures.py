"""Files of captions and features, and tiny datasets of pictures; not a test itself."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtgrid.base.io.arrays import save_tensors
from nmtgrid.data.captioning.build import CaptionPlan, CaptionSources, preprocess_captions
from nmtgrid.data.dataset import Dataset, PictureSplit
from nmtgrid.data.subwords import SubwordPlan, learn_subwords

SIZE = 3

KARPATHY = {
    "images": [
        {"cocoid": 9, "filename": "a9.jpg", "split": "train",
         "sentences": [{"raw": "A cat.", "tokens": ["a", "cat"]}, {"raw": "One cat sits"}]},
        {"cocoid": 10, "filename": "a10.jpg", "split": "train",
         "sentences": [{"raw": "A dog runs!"}, {"raw": " . "}]},
        {"cocoid": 11, "filename": "a11.jpg", "split": "restval",
         "sentences": [{"raw": "Two dogs"}]},
        {"cocoid": 12, "filename": "a12.jpg", "split": "val",
         "sentences": [{"raw": "A dog."}, {"raw": "The dog's bone"}, {"raw": "a cat"}]},
        {"cocoid": 13, "filename": "a13.jpg", "split": "test",
         "sentences": [{"raw": "A bird."}]},
    ]
}  # fmt: skip
"""Five pictures in all of Karpathy's splits; one caption has no word."""


def features(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return features of the pictures, each called in another way: 1 to 3 regions of 3 features."""
    regions = {
        "9": torch.arange(3.0),
        "a10.jpg": torch.arange(6.0).view(2, 3),
        "a11": torch.ones(1, 3),
        "12": torch.arange(9.0).view(3, 3) / 2,
        "a13.jpg": torch.full((2, 3), -1.5),
    }
    return {name: values.to(dtype) for name, values in regions.items()}


def write_json(path: Path, values: Any) -> Path:
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def files(folder: Path, dtype: torch.dtype = torch.float32) -> CaptionSources:
    """Write Karpathy's file and the features; return what names them."""
    folder.mkdir(parents=True, exist_ok=True)
    captions = write_json(folder / "dataset.json", KARPATHY)
    save_tensors(folder / "features.safetensors", features(dtype))
    return CaptionSources(captions, [folder / "features.safetensors"])


def build(
    folder: Path,
    sources: CaptionSources | None = None,
    plan: CaptionPlan | None = None,
    units: SubwordPlan | None = None,
) -> tuple[Dataset, dict[str, Any]]:
    """Return a whole dataset and its manifest."""
    manifest = preprocess_captions(
        plan or CaptionPlan(), sources or files(folder / "given"), folder / "data"
    )
    learn_subwords(folder / "data", units or SubwordPlan(words=True))
    return Dataset.open(folder / "data"), manifest


def split_of(dataset: Dataset, name: str) -> PictureSplit:
    split = dataset.split(name)
    assert isinstance(split, PictureSplit)
    return split


def lines(folder: Path, name: str) -> Sequence[str]:
    return (folder / name).read_text(encoding="utf-8").splitlines()


def coco(captions: Mapping[int, Sequence[str]]) -> dict[str, Any]:
    return {
        "images": [{"id": number, "file_name": f"{number}.jpg"} for number in captions],
        "annotations": [
            {"image_id": number, "caption": text} for number, texts in captions.items()
            for text in texts
        ],
    }  # fmt: skip
