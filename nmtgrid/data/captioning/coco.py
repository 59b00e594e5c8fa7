"""Captions of pictures in the two public JSON formats of MS-COCO.

Karpathy's file lists each picture with its split and sentences,
`{"images": [{"cocoid", "filename", "split", "sentences": [{"raw", "tokens"}]}]}`; COCO's own files
separate pictures and captions, `{"images": [{"id"}], "annotations": [{"image_id", "caption"}]}`.
`build.py` forms the splits of the dataset from them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from nmtgrid.base.errors import InputError
from nmtgrid.base.io.atomic import storage_error
from nmtgrid.base.io.records import Count, Record, convert, parse_json
from nmtgrid.base.io.text import check_file

_LAYOUTS = (
    "Give Karpathy's `dataset_coco.json` (`images` with `split` and `sentences`) or COCO's own "
    "`captions_*.json` (`images` and `annotations`)."
)


@dataclasses.dataclass(frozen=True)
class Caption:
    """A raw caption, and its words if the file has them."""

    raw: str
    tokens: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class CaptionedPicture:
    """A picture: the names that its features may have, and its captions."""

    keys: tuple[str, ...]
    captions: tuple[Caption, ...]

    @property
    def name(self) -> str:
        """The first of its keys."""
        return self.keys[0]


class _KarpathyImage(Record):
    split: str
    sentences: tuple[Caption, ...]
    cocoid: Count | str | None = None
    filename: Count | str | None = None
    imgid: Count | str | None = None


class _Karpathy(Record):
    images: list[_KarpathyImage]


class _CocoImage(Record):
    id: Count | str
    file_name: Count | str | None = None


class _Annotation(Record):
    image_id: Count | str
    caption: str


class _Coco(Record):
    images: list[_CocoImage]
    annotations: list[_Annotation]


def read_captions(path: Path) -> dict[str, list[CaptionedPicture]]:
    """Return the pictures of a file by split; COCO's own files have one split, called "".

    Raises InputError naming the entry that is wrong.
    """
    values = _read(path)
    # Karpathy's file has no `annotations`: sentences are listed with their pictures.
    is_coco = isinstance(values, dict) and "annotations" in values
    splits: dict[str, list[CaptionedPicture]] = {}
    try:
        if is_coco:
            splits[""] = _pictures_of_coco(path, convert(values, _Coco))
        else:
            for split, picture in _pictures_of_karpathy(convert(values, _Karpathy)):
                splits.setdefault(split, []).append(picture)
    except ValueError as fault:
        raise InputError(f"{fault}.", _LAYOUTS, path=path) from fault
    if not any(splits.values()):
        raise InputError("its list `images` is empty.", "Give another file.", path=path)
    # Across splits too: a picture in two of them would leak test captions into training.
    seen: set[str] = set()
    for picture in (picture for pictures in splits.values() for picture in pictures):
        if picture.name in seen:
            raise _duplicate_error(path, picture.name)
        seen.add(picture.name)
    return splits


def _read(path: Path) -> Any:
    check_file(path)
    try:
        return parse_json(path.read_bytes())
    except OSError as fault:
        raise storage_error(path, fault, "read") from fault
    except ValueError as fault:
        raise InputError(
            f"{fault}.", "Correct the file, or download it again: it may be truncated.", path=path
        ) from fault


def _pictures_of_karpathy(content: _Karpathy) -> Iterator[tuple[str, CaptionedPicture]]:
    # `imgid` numbers the file's pictures: it could equal the COCO id of another picture.
    has_ids = any(image.cocoid is not None for image in content.images)
    for index, image in enumerate(content.images):
        names = _file_names(image.filename)
        keys = _keys(image.cocoid, *names) if has_ids else _keys(*names, image.imgid)
        if not keys:
            raise ValueError(f"`images[{index}]` has no name: `cocoid`, `filename` or `imgid`")
        yield image.split, CaptionedPicture(keys, image.sentences)


def _pictures_of_coco(path: Path, content: _Coco) -> list[CaptionedPicture]:
    captions: dict[str, list[Caption]] = {}
    keys: dict[str, tuple[str, ...]] = {}
    for image in content.images:
        # As text: an id may be a number in one list and text in the other.
        name = str(image.id)
        if name in keys:
            raise _duplicate_error(path, name)
        keys[name], captions[name] = _keys(name, *_file_names(image.file_name)), []
        if not name:
            raise ValueError("an `id` of `images` is empty")
    for index, annotation in enumerate(content.annotations):
        owner = str(annotation.image_id)
        if owner not in captions:
            raise InputError(
                f"annotations[{index}] refers to the picture `{owner}`, which is not in `images`.",
                "Correct the file.",
                path=path,
            )
        captions[owner].append(Caption(annotation.caption))
    return [CaptionedPicture(keys[name], tuple(captions[name])) for name in keys]


def _file_names(name: int | str | None) -> tuple[str, ...]:
    """Return the name of a picture's file with and without its extension."""
    return () if name in (None, "") else (str(name), PurePosixPath(str(name)).stem)


def _keys(*names: int | str | None) -> tuple[str, ...]:
    # The order matters: the first key that has features wins.
    return tuple(dict.fromkeys(str(name) for name in names if name not in (None, "")))


def _duplicate_error(path: Path, name: str) -> InputError:
    return InputError(f"the picture `{name}` occurs twice.", "Keep one of them.", path=path)
