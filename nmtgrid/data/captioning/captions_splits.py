"""Which pictures of captions files go to which split, each with its features."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtgrid.base.config import check
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.data.captioning.build import CaptionPlan, Picture, Report, build_pictures
from nmtgrid.data.captioning.captions import PictureSource
from nmtgrid.data.captioning.coco import Captioned, named, read_captions
from nmtgrid.data.captioning.dataset import FeatureFiles

_SPLITS = {"train": "train", "val": "valid", "test": "test"}
"""Karpathy's names and ours."""
_RESTVAL = "restval"
_NUMBER = re.compile(r"\d+")

HeldOut = Mapping[str, str]
"""A file of captions, or a number of pictures to hold out, for each split."""


@dataclasses.dataclass(frozen=True)
class CaptionSources:
    """The files of a dataset of pictures, and what becomes of them."""

    captions: Path
    features: Sequence[Path]
    held_out: HeldOut = dataclasses.field(default_factory=dict)
    restval: bool = False
    """Karpathy's further 30,000 pictures train too; table E.1 does without them."""


def preprocess_captions(
    plan: CaptionPlan,
    sources: CaptionSources,
    out: Path,
    *,
    overwrite: bool = False,
    report: Report | None = None,
) -> dict[str, Any]:
    """Build a dataset of pictures in `out`; return the manifest.

    Raises ConfigError, InputError, DataError (existing folder), StorageError.
    """
    check(plan)
    splits, notes = _split(sources)
    features = FeatureFiles(sources.features)
    found = {name: _with_features(name, held, features) for name, held in splits.items()}
    _check_apart(found)
    used = {name for held in found.values() for name, _ in held}
    notes["features_without_captions"] = len(features.names) - len(used)
    pictures = {
        name: [
            Picture(own, one.captions, functools.partial(features.read, own)) for own, one in held
        ]
        for name, held in found.items()
    }
    source = PictureSource(features.size, features.kind)
    return build_pictures(
        plan, source, pictures, out, {"notes": notes}, overwrite=overwrite, report=report
    )


def _split(sources: CaptionSources) -> tuple[dict[str, list[Captioned]], dict[str, int]]:
    """Return the pictures of each split, and what is worth telling."""
    held = read_captions(sources.captions)
    if "" not in held:
        return _of_karpathy(sources, held)
    if sources.restval:
        raise ConfigError(
            f"`--restval` belongs to Karpathy's splits, which {sources.captions} does not have.",
            "Leave it out.",
        )
    train, found = held[""], {}
    for name, given in sources.held_out.items():
        if _NUMBER.fullmatch(given):
            train, found[name] = _cut(train, int(given), name)
        else:
            found[name] = _of_one_file(Path(given))
    return _in_order({"train": train, **found}), {}


def _of_karpathy(
    sources: CaptionSources, held: dict[str, list[Captioned]]
) -> tuple[dict[str, list[Captioned]], dict[str, int]]:
    if sources.held_out:
        raise ConfigError(
            f"{sources.captions} has splits of its own: leave `--valid` and `--test` out."
        )
    unknown = [name for name in held if name not in (*_SPLITS, _RESTVAL)]
    if unknown or "train" not in held:
        raise InputError(
            f"its splits are {named(list(held))}.",
            "There must be `train`, and there may be `restval`, `val` and `test`.",
            path=sources.captions,
        )
    found = {ours: held[theirs] for theirs, ours in _SPLITS.items() if theirs in held}
    rest = held.get(_RESTVAL, [])
    if sources.restval:
        return {**found, "train": [*found["train"], *rest]}, {"restval": 0}
    return found, {"restval": len(rest)}


def _of_one_file(path: Path) -> list[Captioned]:
    found = read_captions(path)
    if "" not in found:
        raise InputError(
            "it has splits of its own (Karpathy's layout), but one split is wanted.",
            "Give it to `--captions` alone, or name a file in COCO's own layout.",
            path=path,
        )
    return found[""]


def _cut(train: list[Captioned], count: int, name: str) -> tuple[list[Captioned], list[Captioned]]:
    """Return what stays and `count` pictures that are held out, evenly spread over the file."""
    if not 0 < count < len(train):
        raise ConfigError(
            f"`{name}`: {count:,} of {len(train):,} pictures cannot be held out; there must be "
            "some on both sides.",
            "Give a number of pictures to hold out, or a file.",
        )
    places = {(2 * place + 1) * len(train) // (2 * count) for place in range(count)}
    kept = [one for place, one in enumerate(train) if place not in places]
    return kept, [train[place] for place in sorted(places)]


def _with_features(
    name: str, pictures: list[Captioned], features: FeatureFiles
) -> list[tuple[str, Captioned]]:
    """Return each picture with the name of its features."""
    found = [(features.find(one.keys), one) for one in pictures]
    missing = [one.name for own, one in found if own is None]
    if missing:
        raise InputError(
            f"{len(missing):,} of {len(pictures):,} pictures of `{name}` have no features: "
            f"{named(missing)}.",
            f"Features are called {named(features.names)}; a picture's id, file name, or file name "
            "without its ending must be among the names. Give all files by `--features`, or leave "
            "the pictures out of the captions.",
        )
    return [(own, one) for own, one in found if own is not None]


def _check_apart(found: Mapping[str, list[tuple[str, Captioned]]]) -> None:
    """Raise InputError where a picture is in two splits, or two pictures share features."""
    owners: dict[str, str] = {}
    twice = []
    for split, held in found.items():
        for name, _ in held:
            if name in owners:
                twice.append(f"{name} ({owners[name]}, {split})")
            owners[name] = split
    if twice:
        raise InputError(
            f"{len(twice):,} pictures are there twice: {named(twice)}.",
            "A picture can be in one split alone.",
        )


def _in_order(splits: dict[str, list[Captioned]]) -> dict[str, list[Captioned]]:
    first = [name for name in ("train", "valid") if name in splits]
    return {name: splits[name] for name in [*first, *(n for n in splits if n not in first)]}
