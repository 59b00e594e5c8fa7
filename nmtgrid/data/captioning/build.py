"""Which pictures of captions files go to which split, each with its features."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from nmtgrid import __version__
from nmtgrid.base.config import check
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.base.io.atomic import atomic_file
from nmtgrid.data import directory as manifests
from nmtgrid.data.captioning.coco import Caption, CaptionedPicture, list_names, read_captions
from nmtgrid.data.captioning.dataset import (
    FOLDER,
    SOURCE_LANG,
    FeatureFiles,
    PictureSource,
    PictureWriter,
)
from nmtgrid.data.directory import LineFile, new_folder
from nmtgrid.text.moses import Moses

REASONS = ("empty", "too_long")
"""Why a caption is dropped: it has no word, or (in training) too many."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_IS_WORD = re.compile(r"\w")
_ESCAPE = re.compile(r"&(#\d+|[a-z]+);")

Report = Callable[[int, int], None]
"""Is told how many pictures of how many are done."""


@dataclasses.dataclass(frozen=True)
class CaptionPlan:
    """What `preprocess` does to captions."""

    target_lang: str = "en"
    tokenize: Literal["moses", "none"] = "moses"
    """`none` takes the words of the file, or what stands between spaces."""
    lowercase: bool = True
    max_words: int = 175
    """Training captions with more words are dropped."""

    def faults(self) -> list[str]:
        """Return what is wrong with the settings."""
        found = []
        if not _NAME.fullmatch(self.target_lang) or self.target_lang == SOURCE_LANG:
            found.append(f"`--target-lang` must be a name such as `en`, not `{self.target_lang}`.")
        if self.max_words < 1:
            found.append(f"`--max-words` must be at least 1, but is {self.max_words}.")
        return found

    def words(self) -> Callable[[Caption], str]:
        """Return what turns a caption into its words between single spaces.

        Tokens of punctuation alone are left out, as the evaluation of MS-COCO does: captions that
        end with a full stop are no better than those that do not.
        """
        moses = Moses(self.target_lang, self.tokenize == "moses", self.lowercase)

        def words(caption: Caption) -> str:
            if self.tokenize == "none" and caption.tokens is not None:
                return moses.tokenize(" ".join(caption.tokens))
            text = caption.raw.lower() if self.lowercase else caption.raw
            return " ".join(filter(_is_word, moses.tokenize(text).split(" ")))

        return words


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture of a split: name, captions, and the features [regions, F] when they are wanted."""

    name: str
    captions: Sequence[Caption]
    features: Callable[[], NDArray[Any]]


def build_pictures(
    plan: CaptionPlan,
    source: PictureSource,
    splits: Mapping[str, Sequence[Picture]],
    out: Path,
    facts: Mapping[str, Any],
    *,
    overwrite: bool = False,
    report: Report | None = None,
) -> dict[str, Any]:
    """Write a dataset of pictures and return its manifest; `facts` are added to it.

    Raises ConfigError, InputError for a split of which nothing is left, DataError (existing
    folder), StorageError.
    """
    check(plan)
    started = time.monotonic()
    with new_folder(out, overwrite) as folder:
        for part in ("text", "raw", FOLDER):
            (folder / part).mkdir()
        total = sum(map(len, splits.values()))
        tell = report or (lambda done, total: None)
        builder = _Builder(folder, plan, source, lambda done: tell(done, total))
        counts = {name: builder.write(name, pictures) for name, pictures in splits.items()}
        names = ("target_lang", "tokenize", "lowercase")
        manifest = {
            "version": __version__,
            "source": source.describe(),
            "text": {"source_lang": SOURCE_LANG, **{n: getattr(plan, n) for n in names}},
            "filters": {"max_words": plan.max_words},
            **facts,
            "splits": counts,
            "files": builder.files,
            "seconds": round(time.monotonic() - started, 3),
        }
        manifests.write(folder, manifest)
    return manifest


class _Builder:
    """Writes splits into a folder; `files` gathers the sizes and hashes of what it wrote."""

    def __init__(
        self,
        folder: Path,
        plan: CaptionPlan,
        source: PictureSource,
        report: Callable[[int], None],
    ) -> None:
        self._folder, self._plan, self._source, self._report = folder, plan, source, report
        self._words = plan.words()
        self._done = 0
        self.files: dict[str, dict[str, Any]] = {}

    def write(self, name: str, pictures: Iterable[Picture]) -> dict[str, Any]:
        """Write a split; return its counts."""
        read = kept = shown = bare = 0
        dropped: Counter[str] = Counter()
        features = self._folder / FOLDER / f"{name}.safetensors"
        with self._lines(name) as (text, raw, names):
            writer = PictureWriter(features, self._source)
            try:
                for picture in pictures:
                    captions = self._kept(picture, dropped, is_training=name == "train")
                    read, kept = read + len(picture.captions), kept + len(captions)
                    if captions:
                        writer.append(picture.features(), len(captions))
                        text.extend(_block(words for words, _ in captions))
                        raw.extend(_block(caption.raw for _, caption in captions))
                        names.extend(_block([picture.name]))
                    shown, bare = shown + bool(captions), bare + (not captions)
                    self._done += 1
                    self._report(self._done)
                if not kept:
                    raise _nothing_left(name, read, dropped)
                writer.close()
            except BaseException:
                writer.discard()
                raise
        self.files[f"{FOLDER}/{name}.safetensors"] = manifests.describe_file(features)
        return {
            "pairs_read": read,
            "pairs_kept": kept,
            "dropped": {reason: dropped[reason] for reason in REASONS},
            "pictures": shown,
            "pictures_without_captions": bare,
        }

    def _kept(
        self, picture: Picture, dropped: Counter[str], *, is_training: bool
    ) -> list[tuple[str, Caption]]:
        """Return words and caption of what is kept of a picture's captions."""
        found = []
        for caption in picture.captions:
            words = self._words(caption)
            if not words:
                dropped["empty"] += 1
            elif is_training and words.count(" ") >= self._plan.max_words:
                dropped["too_long"] += 1
            else:
                found.append((words, caption))
        return found

    @contextlib.contextmanager
    def _lines(self, name: str) -> Iterator[tuple[LineFile, LineFile, LineFile]]:
        """Open the files of words, raw captions and names of a split."""
        language = self._plan.target_lang
        places = [f"text/{name}.{language}", f"raw/{name}.{language}", f"{FOLDER}/{name}.txt"]
        with contextlib.ExitStack() as stack:
            files = [
                LineFile(stack.enter_context(atomic_file(self._folder / place))) for place in places
            ]
            yield files[0], files[1], files[2]
        for place, file in zip(places, files, strict=True):
            self.files[place] = file.facts


def _is_word(token: str) -> bool:
    """Whether a token of Moses, in which marks may be written as escapes, has a letter or digit."""
    return _IS_WORD.search(_ESCAPE.sub("", token)) is not None


def _block(lines: Iterable[str]) -> bytes:
    """Return lines as bytes; what a line holds stays on it."""
    return "".join(f"{' '.join(line.split())}\n" for line in lines).encode()


def _nothing_left(name: str, read: int, dropped: Counter[str]) -> InputError:
    reasons = ", ".join(f"{reason} {dropped[reason]:,}" for reason in REASONS)
    return InputError(
        f"no caption is left in `{name}`: {read:,} were read (dropped: {reasons}).",
        "Check the file of captions, or hold out fewer pictures.",
    )


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


def _split(sources: CaptionSources) -> tuple[dict[str, list[CaptionedPicture]], dict[str, int]]:
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
    sources: CaptionSources, held: dict[str, list[CaptionedPicture]]
) -> tuple[dict[str, list[CaptionedPicture]], dict[str, int]]:
    if sources.held_out:
        raise ConfigError(
            f"{sources.captions} has splits of its own: leave `--valid` and `--test` out."
        )
    unknown = [name for name in held if name not in (*_SPLITS, _RESTVAL)]
    if unknown or "train" not in held:
        raise InputError(
            f"its splits are {list_names(list(held))}.",
            "There must be `train`, and there may be `restval`, `val` and `test`.",
            path=sources.captions,
        )
    found = {ours: held[theirs] for theirs, ours in _SPLITS.items() if theirs in held}
    rest = held.get(_RESTVAL, [])
    if sources.restval:
        return {**found, "train": [*found["train"], *rest]}, {"restval": 0}
    return found, {"restval": len(rest)}


def _of_one_file(path: Path) -> list[CaptionedPicture]:
    found = read_captions(path)
    if "" not in found:
        raise InputError(
            "it has splits of its own (Karpathy's layout), but one split is wanted.",
            "Give it to `--captions` alone, or name a file in COCO's own layout.",
            path=path,
        )
    return found[""]


def _cut(
    train: list[CaptionedPicture], count: int, name: str
) -> tuple[list[CaptionedPicture], list[CaptionedPicture]]:
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
    name: str, pictures: list[CaptionedPicture], features: FeatureFiles
) -> list[tuple[str, CaptionedPicture]]:
    """Return each picture with the name of its features."""
    found = [(features.find(one.keys), one) for one in pictures]
    missing = [one.name for own, one in found if own is None]
    if missing:
        raise InputError(
            f"{len(missing):,} of {len(pictures):,} pictures of `{name}` have no features: "
            f"{list_names(missing)}.",
            f"Features are called {list_names(features.names)}; a picture's id, file name, or file name "
            "without its ending must be among the names. Give all files by `--features`, or leave "
            "the pictures out of the captions.",
        )
    return [(own, one) for own, one in found if own is not None]


def _check_apart(found: Mapping[str, list[tuple[str, CaptionedPicture]]]) -> None:
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
            f"{len(twice):,} pictures are there twice: {list_names(twice)}.",
            "A picture can be in one split alone.",
        )


def _in_order(splits: dict[str, list[CaptionedPicture]]) -> dict[str, list[CaptionedPicture]]:
    first = [name for name in ("train", "valid") if name in splits]
    return {name: splits[name] for name in [*first, *(n for n in splits if n not in first)]}
