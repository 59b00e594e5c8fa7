"""The pictures of a split: regions' features as a memory map, and which captions are whose.

`pictures/<split>.safetensors` holds `features` (flat), `offsets` [pictures + 1] in regions and
`captions` [pictures + 1]: the lines of the text from captions[p] on belong to picture p.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtgrid.base.errors import DataError, InputError, StorageError
from nmtgrid.base.io.arrays import ArrayFile, map_arrays, read_header
from nmtgrid.data.captioning.coco import list_names
from nmtgrid.text.vocabulary import PAD, Vocabulary

KINDS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""Number types, and as what numpy holds them: it has no bfloat16, whose bits are kept."""
_WHOLE = {"I64": "<i8", "I32": "<i4", "U32": "<u4", "U64": "<u8"}
_LAYOUT = (
    "A file of features has one tensor [regions, F] for each picture, called by its id or file "
    "name; or `features` [total, F] with `offsets` and `ids`."
)


def as_floats(values: NDArray[Any]) -> NDArray[numpy.float32]:
    """Return features as float32; whole numbers are the bits of bfloat16."""
    if values.dtype == numpy.uint16:
        return (values.astype(numpy.uint32) << 16).view(numpy.float32)
    return values.astype(numpy.float32)


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a picture's features lie: a file, the first byte, the number of regions."""

    path: Path
    start: int
    regions: int


class FeatureFiles:
    """The features of several files, by the names of the pictures, in the files' order."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises InputError for what is no file of features, all of a kind and size."""
        self._places: dict[str, _Place] = {}
        shapes: Counter[tuple[str, int]] = Counter()
        for path in paths:
            for name, place, shape in _places(path):
                if name in self._places:
                    raise InputError(
                        f"the picture `{name}` has features twice.", "Keep one.", path=path
                    )
                self._places[name] = place
                shapes[shape] += 1
                if len(shapes) > 1:
                    raise _unlike(path, name, shape, shapes.most_common(1)[0][0])
        if not self._places:
            raise InputError("there are no features in it.", _LAYOUT, path=paths[0])
        (self.kind, self.size), _ = shapes.most_common(1)[0]

    @property
    def names(self) -> list[str]:
        """The pictures, in the order in which the files list them."""
        return list(self._places)

    def find(self, keys: Sequence[str]) -> str | None:
        """Return the first of `keys` that has features."""
        return next((key for key in keys if key in self._places), None)

    def read(self, name: str) -> NDArray[Any]:
        """Return the features [regions, F] of a picture, as the file has them.

        Raises InputError when they are not finite.
        """
        place = self._places[name]
        kind = numpy.dtype(KINDS[self.kind])
        count = place.regions * self.size
        values = numpy.fromfile(place.path, kind, count, offset=place.start)
        if not numpy.isfinite(as_floats(values)).all():
            raise InputError(
                f"the features of the picture `{name}` are not all finite (NaN or infinity).",
                "Extract them again, or leave the picture out.",
                path=place.path,
            )
        return values.reshape(place.regions, self.size)


def _places(path: Path) -> list[tuple[str, _Place, tuple[str, int]]]:
    """Return (picture, place, (number type, F)) of all pictures in a file."""
    try:
        header, facts, start = read_header(path)
    except StorageError as fault:
        raise InputError(fault.problem, fault.advice or _LAYOUT) from fault
    entries = {name: _Entry.read(path, name, entry) for name, entry in header.items()}
    if "features" in entries:
        return _flat(path, entries, facts, start)
    wrong = [name for name, entry in entries.items() if not entry.is_features((1, 2))]
    if wrong:
        shape = entries[wrong[0]]
        raise InputError(
            f"{len(wrong):,} of {len(entries):,} tensors are no features [regions, F] of F32, F16 "
            f"or BF16: {list_names(wrong)} ({shape.kind} {list(shape.shape)}).",
            _LAYOUT,
            path=path,
        )
    return [
        (name, _Place(path, start + one.first, one.rows), (one.kind, one.shape[-1]))
        for name, one in entries.items()
    ]


@dataclasses.dataclass(frozen=True)
class _Entry:
    """What a header says of a tensor."""

    kind: str
    shape: tuple[int, ...]
    first: int

    @classmethod
    def read(cls, path: Path, name: str, entry: Any) -> _Entry:
        try:
            kind, shape = str(entry["dtype"]), tuple(map(_size, entry["shape"]))
            first, last = map(_size, entry["data_offsets"])
        except (KeyError, TypeError, ValueError) as fault:
            raise InputError(f"its entry `{name}` makes no sense.", _LAYOUT, path=path) from fault
        kinds = {**KINDS, **_WHOLE}
        width = numpy.dtype(kinds.get(kind, "V1")).itemsize
        if kind in kinds and math.prod(shape) * width != last - first:
            raise InputError(
                f"the size of `{name}` does not fit its shape.", "Make it again.", path=path
            )
        return cls(kind, shape, first)

    def is_features(self, ranks: tuple[int, ...]) -> bool:
        return self.kind in KINDS and len(self.shape) in ranks and 0 not in self.shape

    @property
    def rows(self) -> int:
        return self.shape[0] if len(self.shape) == 2 else 1


def _size(value: Any) -> int:
    """Return a number of a header. Raises ValueError for what is no whole number from 0 on."""
    if not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


def _flat(
    path: Path, entries: dict[str, _Entry], facts: dict[str, str], start: int
) -> list[tuple[str, _Place, tuple[str, int]]]:
    whole = entries["features"]
    if not whole.is_features((2,)) or "offsets" not in entries:
        raise InputError(
            f"`features` must be [total, F] of F32, F16 or BF16 with `offsets` beside it, but is "
            f"{whole.kind} {list(whole.shape)}.",
            _LAYOUT,
            path=path,
        )
    offsets = _whole_numbers(path, "offsets", entries, start)
    names = _ids(path, entries, facts, start)
    fits = len(offsets) == len(names) + 1 and offsets[0] == 0 and offsets[-1] == whole.shape[0]
    if not fits or bool((numpy.diff(offsets) < 1).any()):
        raise InputError(
            f"`offsets` must rise from 0 to {whole.shape[0]:,}, one more than the {len(names):,} "
            "pictures of `ids`, each with a region or more.",
            _LAYOUT,
            path=path,
        )
    width = numpy.dtype(KINDS[whole.kind]).itemsize * whole.shape[1]
    return [
        (name, _Place(path, start + whole.first + int(first) * width, int(last - first)),
         (whole.kind, whole.shape[1]))
        for name, first, last in zip(names, offsets[:-1], offsets[1:], strict=True)
    ]  # fmt: skip


def _whole_numbers(path: Path, name: str, entries: dict[str, _Entry], start: int) -> NDArray[Any]:
    entry = entries[name]
    if entry.kind not in _WHOLE or len(entry.shape) != 1 or 0 in entry.shape:
        raise InputError(f"`{name}` must be a list of whole numbers.", _LAYOUT, path=path)
    return numpy.fromfile(path, _WHOLE[entry.kind], entry.shape[0], offset=start + entry.first)


def _ids(path: Path, entries: dict[str, _Entry], facts: dict[str, str], start: int) -> list[str]:
    if "ids" in entries:
        return [str(one) for one in _whole_numbers(path, "ids", entries, start).tolist()]
    try:
        names = json.loads(facts.get("ids", ""))
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(one, (str, int)) for one in names):
        raise InputError("it has no `ids` of its pictures.", _LAYOUT, path=path)
    return [str(one) for one in names]


def _unlike(path: Path, name: str, shape: tuple[str, int], others: tuple[str, int]) -> InputError:
    return InputError(
        f"the picture `{name}` has {shape[1]:,} features of {shape[0]}, others have {others[1]:,} "
        f"of {others[0]}.",
        "All pictures need features of one size and number type.",
        path=path,
    )


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


def no_text_error(path: Path) -> DataError:
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


def group_captions(lines: Sequence[str], starts: Iterable[int]) -> list[list[str]]:
    """Return the captions of each picture, for `starts` [pictures + 1]."""
    bounds = [int(start) for start in starts]
    return [list(lines[a:b]) for a, b in itertools.pairwise(bounds)]


def _rises(offsets: NDArray[Any]) -> bool:
    """Whether offsets begin at 0 and each picture has something."""
    return bool(len(offsets) > 0 and offsets[0] == 0 and (numpy.diff(offsets) > 0).all())
