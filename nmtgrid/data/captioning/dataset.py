"""Features of pictures that a user has: safetensors files, read picture by picture.

A file holds one tensor [regions, F] (or [F], one region) for each picture, called by the picture's
id or file name. Or it holds all of them in `features` [total, F], with `offsets` [pictures + 1] and
`ids` [pictures] (whole numbers; names may stand as a JSON list under `ids` in the header's facts).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.base.errors import InputError, StorageError
from nmtgrid.base.io.arrays import read_header
from nmtgrid.data.captioning.coco import named

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
            f"or BF16: {named(wrong)} ({shape.kind} {list(shape.shape)}).",
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
