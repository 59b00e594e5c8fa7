"""Captions of pictures in the two public layouts of MS-COCO.

Karpathy's file has each picture with its split and sentences,
`{"images": [{"cocoid", "filename", "split", "sentences": [{"raw", "tokens"}]}]}`; COCO's own files
have pictures and captions apart, `{"images": [{"id"}], "annotations": [{"image_id", "caption"}]}`.
`build.py` chooses the splits of the dataset from them.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

from nmtgrid.base.errors import InputError
from nmtgrid.base.io.atomic import storage_error

_LAYOUTS = (
    "Give Karpathy's `dataset_coco.json` (`images` with `split` and `sentences`) or COCO's own "
    "`captions_*.json` (`images` and `annotations`)."
)
_MOST_NAMED = 5
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclasses.dataclass(frozen=True)
class Caption:
    """A raw caption, and its words where the file has them."""

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


def read_captions(path: Path) -> dict[str, list[CaptionedPicture]]:
    """Return the pictures of a file by split; COCO's own files have one split, called "".

    Raises InputError naming the entry that is wrong.
    """
    values = _read(path)
    images = values.get("images") if isinstance(values, dict) else None
    if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
        raise InputError("it holds no list `images` of tables.", _LAYOUTS, path=path)
    if not images:
        raise InputError("its list `images` is empty.", "Give another file.", path=path)
    # Karpathy's file has no `annotations`: sentences stand with their pictures.
    splits: dict[str, list[CaptionedPicture]] = {}
    if isinstance(values.get("annotations"), list):
        splits[""] = _read_coco(path, images, values["annotations"])
    else:
        for split, picture in _read_karpathy(path, images):
            splits.setdefault(split, []).append(picture)
    # Across splits too: a picture in two of them would leak test captions into training.
    seen: set[str] = set()
    for picture in (picture for pictures in splits.values() for picture in pictures):
        if picture.name in seen:
            raise _duplicate_error(path, picture.name)
        seen.add(picture.name)
    return splits


def list_names(names: Sequence[str]) -> str:
    """Return the first of `names` for a message, and how many more there are."""
    shown = ", ".join(f"`{name}`" for name in names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f"{shown} and {more:,} more" if more > 0 else shown


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes().decode("utf-8"))
    except OSError as fault:
        raise storage_error(path, fault, "read") from fault
    # Caught before its base class ValueError, because it alone knows the position.
    except json.JSONDecodeError as fault:
        raise InputError(
            f"it is not JSON: {fault.msg} at column {fault.colno}.",
            "Mend the file, or fetch it again: it may have been cut.",
            path=path,
            line=fault.lineno,
        ) from fault
    except (ValueError, RecursionError) as fault:
        raise InputError(f"it is not JSON ({fault}).", _LAYOUTS, path=path) from fault


def _read_karpathy(
    path: Path, images: list[dict[str, Any]]
) -> Iterator[tuple[str, CaptionedPicture]]:
    # `imgid` counts the file's pictures: next to ids of COCO it could be the id of another picture.
    has_ids = any("cocoid" in image for image in images)
    fields = ("cocoid", "filename") if has_ids else ("filename", "imgid")
    for index, image in enumerate(images):
        split, sentences = image.get("split"), image.get("sentences")
        keys = _keys(image, fields)
        if not isinstance(split, str) or not isinstance(sentences, list) or not keys:
            raise _lacks_error(path, f"images[{index}]", "a `split`, `sentences` and a name")
        captions = []
        for number, sentence in enumerate(sentences):
            fields_of = sentence if isinstance(sentence, dict) else {}
            raw, tokens = fields_of.get("raw"), fields_of.get("tokens")
            are_words = isinstance(tokens, list) and all(map(_is_text, tokens))
            if not _is_text(raw) or not (tokens is None or are_words):
                where = f"images[{index}].sentences[{number}]"
                raise _lacks_error(path, where, "a text `raw` and, if any, words `tokens`")
            captions.append(Caption(raw, None if tokens is None else tuple(tokens)))
        yield split, CaptionedPicture(keys, tuple(captions))


def _read_coco(
    path: Path, images: list[dict[str, Any]], annotations: list[Any]
) -> list[CaptionedPicture]:
    captions: dict[str, list[Caption]] = {}
    keys: dict[str, tuple[str, ...]] = {}
    for index, image in enumerate(images):
        names = _keys(image, ("id", "file_name"))
        if "id" not in image or not names:
            raise _lacks_error(path, f"images[{index}]", "an `id`")
        if names[0] in keys:
            raise _duplicate_error(path, names[0])
        keys[names[0]], captions[names[0]] = names, []
    for index, annotation in enumerate(annotations):
        text = annotation.get("caption") if isinstance(annotation, dict) else None
        if not _is_text(text):
            raise _lacks_error(path, f"annotations[{index}]", "a text `caption`")
        # As text, like the keys: an id may be a number in one list and text in the other.
        owner = str(annotation.get("image_id"))
        if owner not in captions:
            raise InputError(
                f"annotations[{index}] is of the picture `{owner}`, which `images` does not have.",
                "Mend the file.",
                path=path,
            )
        captions[owner].append(Caption(text))
    return [CaptionedPicture(keys[name], tuple(captions[name])) for name in keys]


def _keys(image: dict[str, Any], fields: Iterable[str]) -> tuple[str, ...]:
    """Return the names of a picture: its ids, its file's name with and without ending."""
    keys: list[str] = []
    for field in fields:
        value = image.get(field)
        # For Python a boolean is a number, but `true` is no id.
        if isinstance(value, bool) or not (isinstance(value, int) or _is_text(value)):
            continue
        if value == "":
            continue
        keys.append(str(value))
        if field in ("filename", "file_name"):
            keys.append(PurePosixPath(str(value)).stem)
    # The order counts: the first key that has features wins.
    return tuple(dict.fromkeys(keys))


def _is_text(value: Any) -> TypeGuard[str]:
    # JSON can escape halves of surrogate pairs, which are not text.
    return isinstance(value, str) and not _SURROGATES.search(value)


def _lacks_error(path: Path, where: str, what: str) -> InputError:
    return InputError(f"{where} lacks {what}.", _LAYOUTS, path=path)


def _duplicate_error(path: Path, name: str) -> InputError:
    return InputError(f"the picture `{name}` stands twice.", "Keep one of them.", path=path)
