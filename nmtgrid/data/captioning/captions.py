"""The pictures of a split: regions' features as a memory map, and which captions are whose.

`pictures/<split>.safetensors` holds `features` (flat), `offsets` [pictures + 1] in regions and
`captions` [pictures + 1]: the lines of the text from captions[p] on belong to picture p.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtgrid.base.errors import DataError, StorageError
from nmtgrid.base.io.arrays import ArrayFile, map_arrays
from nmtgrid.data.captioning.dataset import KINDS, as_floats
from nmtgrid.text.vocabulary import PAD, Vocabulary

SOURCE_LANG = "pictures"
"""What stands in the place of a source language."""
FOLDER = "pictures"
_AGAIN = "Make the dataset again with `nmtgrid preprocess`, or restore a copy."


def feature_vocabulary(size: int) -> Vocabulary:
    """Return what stands in the place of source types: one for each feature of a region."""
    return Vocabulary([f"feature{place}" for place in range(1, size + 1)])


@dataclasses.dataclass(frozen=True)
class PictureSource:
    """The manifest's entry `source`: what a region of a picture is."""

    size: int
    """Features of a region."""
    kind: str
    """Their number type in the file: F32, F16 or BF16."""

    @classmethod
    def of(cls, manifest: dict[str, Any]) -> PictureSource | None:
        """Return the entry of a manifest, None where sources are text.

        Raises StorageError when it makes no sense.
        """
        values = manifest.get("source")
        if values is None:
            return None
        fits = isinstance(values, dict) and values.get("kind") == "features"
        if not fits or type(values.get("size")) is not int or values.get("type") not in KINDS:
            raise StorageError(
                "The manifest's entry `source` speaks of no features of pictures.", _AGAIN
            )
        return cls(values["size"], values["type"])

    def describe(self) -> dict[str, Any]:
        """Return the entry for the manifest."""
        return {"kind": "features", "size": self.size, "type": self.kind}


def no_text(path: Path) -> DataError:
    """Return the error for source text asked of a dataset of pictures."""
    return DataError(
        f"The sources of the dataset {path} are pictures, not text.",
        "Captions are made and scored by `nmtgrid train` and `nmtgrid decode`; this needs a "
        "dataset of two languages.",
    )


class PictureWriter:
    """Writes the pictures of a split, one after the other."""

    def __init__(self, path: Path, source: PictureSource) -> None:
        # Bits of bfloat16 go into the file as whole numbers.
        kinds = {"features": "U16" if source.kind == "BF16" else source.kind}
        self._file = ArrayFile(path, {**kinds, "offsets": "I64", "captions": "I64"})
        self._regions = self._captions = 0
        self._mark()

    def append(self, features: NDArray[Any], captions: int) -> None:
        """Add a picture: features [regions, F], and how many captions it has."""
        self._file.append("features", features.reshape(-1))
        self._regions += len(features)
        self._captions += captions
        self._mark()

    def close(self) -> None:
        """Put the file into its place."""
        self._file.close()

    def discard(self) -> None:
        """Leave nothing behind."""
        self._file.discard()

    def _mark(self) -> None:
        self._file.append("offsets", numpy.array([self._regions]))
        self._file.append("captions", numpy.array([self._captions]))


class Pictures:
    """The pictures of a split, read from its file when they are asked for."""

    def __init__(self, path: Path, source: PictureSource) -> None:
        """Raises StorageError when the file is damaged."""
        arrays = map_arrays(path)
        missing = [name for name in ("features", "offsets", "captions") if name not in arrays]
        if missing:
            raise StorageError(f"{path} is damaged: it lacks `{missing[0]}`.", _AGAIN)
        features, self._offsets = arrays["features"], numpy.array(arrays["offsets"])
        self.captions = numpy.array(arrays["captions"])
        """[pictures + 1]: where the captions of each picture begin."""
        total = int(self._offsets[-1]) if len(self._offsets) else -1
        fits = len(self._offsets) == len(self.captions) and total * source.size == len(features)
        if not fits or not (_rises(self._offsets) and _rises(self.captions)):
            raise StorageError(f"{path} is damaged: its offsets make no sense.", _AGAIN)
        if features.dtype != numpy.dtype(KINDS[source.kind]):
            raise StorageError(f"{path} is not of the type {source.kind}.", _AGAIN)
        self._features = features.reshape(-1, source.size)
        self.size = source.size
        self.regions: NDArray[numpy.int32] = numpy.diff(self._offsets).astype(numpy.int32)
        """[pictures]: how many regions each has."""

    def __len__(self) -> int:
        return len(self.regions)

    def features(self, index: int) -> NDArray[numpy.float32]:
        """Return the features [regions, F] of a picture."""
        return as_floats(self._features[self._offsets[index] : self._offsets[index + 1]])


def collate_pictures(pictures: Sequence[NDArray[numpy.float32]]) -> tuple[Tensor, Tensor]:
    """Return sources [B, S, F], zero on padding, and how many regions each has [B]."""
    lengths = [len(features) for features in pictures]
    source = torch.zeros(len(pictures), max(lengths), pictures[0].shape[1])
    for row, features in enumerate(pictures):
        source[row, : len(features)] = torch.from_numpy(numpy.ascontiguousarray(features))
    return source, torch.tensor(lengths)


def collate_references(references: Sequence[Sequence[Sequence[int]]]) -> Tensor:
    """Return all references of each picture as ids [B, K, L], `<pad>` where there is none."""
    most = max(map(len, references))
    longest = max((len(tokens) for held in references for tokens in held), default=0)
    found = torch.full((len(references), most, longest), PAD)
    for row, held in enumerate(references):
        for place, tokens in enumerate(held):
            found[row, place, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
    return found


def check_size(features: NDArray[numpy.float32], size: int) -> NDArray[numpy.float32]:
    """Return features [regions, F] of a picture. Raises DataError unless F is `size`."""
    if features.ndim != 2 or features.shape[1] != size or not len(features):
        raise DataError(
            f"The model knows {size:,} features of a region, but a picture has {features.shape}.",
            "Give features [regions, F] of the kind that the model was trained on.",
        )
    return features


def region_names(count: int) -> list[str]:
    """Return what the regions of a picture are called in traces."""
    return [f"region{place}" for place in range(1, count + 1)]


def grouped(lines: Sequence[str], starts: Iterable[int]) -> list[list[str]]:
    """Return the captions of each picture, for `starts` [pictures + 1]."""
    bounds = [int(start) for start in starts]
    return [list(lines[a:b]) for a, b in itertools.pairwise(bounds)]


def _rises(offsets: NDArray[Any]) -> bool:
    """Whether offsets begin at 0 and each picture has something."""
    return bool(len(offsets) > 0 and offsets[0] == 0 and (numpy.diff(offsets) > 0).all())
