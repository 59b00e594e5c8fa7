"""Features of pictures: read from user files, stored in a dataset, collated into batches.

In a dataset `pictures/<split>.safetensors` contains `features` (flat), `offsets` [pictures + 1] in
regions and `captions` [pictures + 1]: picture p has the lines of text from captions[p] on.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
from numpy.typing import NDArray

from nmtgrid.base.errors import DataError, InputError, StorageError, list_names
from nmtgrid.base.io.arrays import ArrayFile, Entry, map_named, read_header
from nmtgrid.base.io.records import convert, parse_json

if TYPE_CHECKING:
    from torch import Tensor

# Number types and their types in numpy, which has no bfloat16 (stored as its bits).
KINDS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_INTEGERS = {"I64": "<i8", "I32": "<i4", "U32": "<u4", "U64": "<u8"}
_LAYOUT = (
    "A file of features has one tensor [regions, F] per picture, named by its id or file name; or "
    "`features` [total, F] with `offsets` and `ids`."
)


def as_floats(values: NDArray[Any]) -> NDArray[numpy.float32]:
    """Return features as float32; integers are the bits of bfloat16."""
    if values.dtype == numpy.uint16:
        # A bfloat16 is the upper half of a float32.
        return (values.astype(numpy.uint32) << 16).view(numpy.float32)
    return values.astype(numpy.float32)


@dataclasses.dataclass(frozen=True)
class _Location:
    """Where a picture's features are stored: a file, the first byte, the number of regions."""

    path: Path
    start: int
    regions: int


class FeatureFiles:
    """The features in several files, by the names of the pictures, in the order of the files."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raise InputError unless all files have features, of the same type and size."""
        self._locations: dict[str, _Location] = {}
        shapes: Counter[tuple[str, int]] = Counter()
        for path in paths:
            for name, location, shape in _locate(path):
                if name in self._locations:
                    raise InputError(
                        f"the picture `{name}` has features twice.", "Keep one.", path=path
                    )
                self._locations[name] = location
                shapes[shape] += 1
                if len(shapes) > 1:
                    usual = shapes.most_common(1)[0][0]
                    raise InputError(
                        f"the picture `{name}` has {shape[1]:,} features of {shape[0]}, others "
                        f"have {usual[1]:,} of {usual[0]}.",
                        "All pictures need features of the same size and type.",
                        path=path,
                    )
        if not self._locations:
            raise InputError("the file contains no features.", _LAYOUT, path=paths[0])
        ((self.kind, self.size),) = shapes

    @property
    def names(self) -> list[str]:
        """The pictures, in the order in which the files list them."""
        return list(self._locations)

    def find(self, keys: Sequence[str]) -> list[str]:
        """Return those of `keys` that have features."""
        return [key for key in keys if key in self._locations]

    def read(self, name: str) -> NDArray[Any]:
        """Return the features [regions, F] of a picture, as stored in the file.

        Raises InputError if they are not finite.
        """
        location = self._locations[name]
        count = location.regions * self.size
        values = numpy.fromfile(location.path, KINDS[self.kind], count, offset=location.start)
        # One NaN would ruin the parameters of a whole run.
        if not numpy.isfinite(as_floats(values)).all():
            raise InputError(
                f"the features of the picture `{name}` are not all finite (NaN or infinity).",
                "Extract them again, or leave the picture out.",
                path=location.path,
            )
        return values.reshape(location.regions, self.size)


def _locate(path: Path) -> Iterator[tuple[str, _Location, tuple[str, int]]]:
    """Yield (picture, location, (number type, F)) of all pictures in a file."""
    try:
        entries, facts, start = read_header(path)
    except StorageError as fault:
        raise InputError(fault.problem, fault.advice or _LAYOUT) from fault
    if "features" in entries:
        yield from _locate_flat(path, entries, facts, start)
        return
    # A vector [F] is accepted as a picture with a single region.
    wrong = [name for name, entry in entries.items() if not _is_features(entry, (1, 2))]
    if wrong:
        first = entries[wrong[0]]
        raise InputError(
            f"{len(wrong):,} of {len(entries):,} tensors are not features of type F32, F16 or BF16 "
            f"and shape [regions, F]: {list_names(wrong)} ({first.dtype} {first.shape}).",
            _LAYOUT,
            path=path,
        )
    for name, entry in entries.items():
        *regions, size = entry.shape
        location = _Location(path, start + entry.data_offsets[0], math.prod(regions))
        yield name, location, (entry.dtype, size)


def _is_features(entry: Entry, ranks: tuple[int, ...]) -> bool:
    return entry.dtype in KINDS and len(entry.shape) in ranks and 0 not in entry.shape


def _locate_flat(
    path: Path, entries: dict[str, Entry], facts: dict[str, str], start: int
) -> Iterator[tuple[str, _Location, tuple[str, int]]]:
    """Yield the same for a file with the features of all pictures in one tensor."""
    whole = entries["features"]
    if not _is_features(whole, (2,)) or "offsets" not in entries:
        raise InputError(
            "`features` must have type F32, F16 or BF16, shape [total, F] and a tensor `offsets`, "
            f"but is {whole.dtype} {whole.shape}.",
            _LAYOUT,
            path=path,
        )
    offsets = _integers(path, "offsets", entries, start)
    if "ids" in entries:
        names = _integers(path, "ids", entries, start).tolist()
    else:
        # Textual names cannot be a tensor, so they are in the file's metadata.
        try:
            names = convert(parse_json(facts.get("ids", "")), list[str | int])
        except ValueError as fault:
            raise InputError("there are no `ids` of pictures.", _LAYOUT, path=path) from fault
    fits = len(offsets) == len(names) + 1 and offsets[-1] == whole.shape[0]
    if not (fits and _rises(offsets)):
        raise InputError(
            f"`offsets` must increase from 0 to {whole.shape[0]:,} and have one entry more than "
            f"the {len(names):,} pictures of `ids`; each picture needs at least one region.",
            _LAYOUT,
            path=path,
        )
    size = whole.shape[1]
    width = numpy.dtype(KINDS[whole.dtype]).itemsize * size
    for name, (first, last) in zip(names, itertools.pairwise(offsets.tolist()), strict=True):
        begin = start + whole.data_offsets[0] + first * width
        yield str(name), _Location(path, begin, last - first), (whole.dtype, size)


def _integers(path: Path, name: str, entries: dict[str, Entry], start: int) -> NDArray[Any]:
    entry = entries[name]
    if entry.dtype not in _INTEGERS or len(entry.shape) != 1 or 0 in entry.shape:
        raise InputError(f"`{name}` must be a list of whole numbers.", _LAYOUT, path=path)
    begin = start + entry.data_offsets[0]
    return numpy.fromfile(path, _INTEGERS[entry.dtype], entry.shape[0], offset=begin)


# The name in place of a source language.
SOURCE_LANG = "pictures"
FOLDER = "pictures"
_AGAIN = "Make the dataset again with `nmtgrid preprocess`, or restore a copy."


@dataclasses.dataclass(frozen=True)
class PictureSource:
    """The manifest's entry `source`: the size and type of region features."""

    size: int
    """Features of a region."""
    kind: str
    """Their number type in the file: F32, F16 or BF16."""

    @classmethod
    def of(cls, manifest: dict[str, Any]) -> PictureSource | None:
        """Return the entry of a manifest, or None if sources are text."""
        values = manifest.get("source")
        return None if values is None else cls(values["size"], values["type"])

    def describe(self) -> dict[str, Any]:
        """Return the entry for the manifest."""
        return {"kind": "features", "size": self.size, "type": self.kind}


def no_text_error(path: Path) -> DataError:
    """Return the error for using the source text of a dataset of pictures."""
    return DataError(
        f"The dataset {path} has pictures as sources, not text.",
        "Use `nmtgrid train` and `nmtgrid decode` for captions; this command needs a dataset of "
        "two languages.",
    )


class PictureWriter(ArrayFile):
    """Writes the pictures of a split, one after the other."""

    def __init__(self, path: Path, source: PictureSource) -> None:
        # The bits of bfloat16 are stored as integers.
        kinds = {"features": "U16" if source.kind == "BF16" else source.kind}
        super().__init__(path, {**kinds, "offsets": "I64", "captions": "I64"})
        self._regions = self._captions = 0
        self._mark()

    def append_picture(self, features: NDArray[Any], captions: int) -> None:
        """Append a picture: its features [regions, F] and its number of captions."""
        self.append("features", features.reshape(-1))
        self._regions += len(features)
        self._captions += captions
        self._mark()

    def _mark(self) -> None:
        self.append("offsets", numpy.array([self._regions]))
        self.append("captions", numpy.array([self._captions]))


class Pictures:
    """The pictures of a split, mapped from its file."""

    def __init__(self, path: Path, source: PictureSource) -> None:
        """Raise StorageError if the file is damaged."""
        features, offsets, captions = map_named(path, ("features", "offsets", "captions"), _AGAIN)
        # Copied from the map: each batch reads them, and they are small next to the features.
        self._offsets, self.captions = numpy.array(offsets), numpy.array(captions)
        """[pictures + 1]: where the captions of each picture begin."""
        total = int(self._offsets[-1]) if len(self._offsets) else -1
        fits = len(self._offsets) == len(self.captions) and total * source.size == len(features)
        if not fits or not (_rises(self._offsets) and _rises(self.captions)):
            raise StorageError(f"{path} is damaged: its offsets are inconsistent.", _AGAIN)
        if features.dtype != numpy.dtype(KINDS[source.kind]):
            raise StorageError(f"{path} does not have the type {source.kind}.", _AGAIN)
        self._features = features.reshape(-1, source.size)
        self.regions: NDArray[numpy.int32] = numpy.diff(self._offsets).astype(numpy.int32)
        """[pictures]: the number of regions of each."""

    def __len__(self) -> int:
        return len(self.regions)

    def features(self, index: int) -> NDArray[numpy.float32]:
        """Return the features [regions, F] of a picture."""
        return as_floats(self._features[self._offsets[index] : self._offsets[index + 1]])


def collate_pictures(pictures: Sequence[NDArray[numpy.float32]]) -> tuple[Tensor, Tensor]:
    """Return sources [B, S, F], zero on padding, and their numbers of regions [B]."""
    import torch  # not at the top: `bpe learn` does not need it

    features = [torch.from_numpy(numpy.ascontiguousarray(picture)) for picture in pictures]
    source = torch.nn.utils.rnn.pad_sequence(features, batch_first=True)
    return source, torch.tensor(list(map(len, pictures)))


def check_size(features: NDArray[numpy.float32], size: int) -> NDArray[numpy.float32]:
    """Return the features [regions, F] of a picture. Raises DataError unless F is `size`."""
    if features.ndim != 2 or features.shape[1] != size or not len(features):
        raise DataError(
            f"The model expects {size:,} features per region, but a picture has {features.shape}.",
            "Give features [regions, F] of the kind used in training.",
        )
    return features


def region_names(count: int) -> list[str]:
    """Return the names of a picture's regions in traces."""
    return [f"region{number}" for number in range(1, count + 1)]


def _rises(offsets: NDArray[Any]) -> bool:
    """Return whether offsets begin at 0 and no picture is empty."""
    # Compared, not subtracted: unsigned numbers would wrap round.
    return bool(len(offsets) > 0 and offsets[0] == 0 and (offsets[1:] > offsets[:-1]).all())
