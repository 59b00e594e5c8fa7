"""From captions and features of pictures to a dataset directory (appendix E).

`nmtgrid preprocess --captions` calls `preprocess_captions`; the toy pictures call `build_pictures`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from nmtgrid import __version__
from nmtgrid.base.config import check
from nmtgrid.base.errors import ConfigError, InputError, list_names
from nmtgrid.base.spans import is_whole_number, whole_number
from nmtgrid.data import directory
from nmtgrid.data.captioning.coco import Caption, CaptionedPicture, read_captions
from nmtgrid.data.captioning.dataset import (
    FOLDER,
    SOURCE_LANG,
    FeatureFiles,
    PictureSource,
    PictureWriter,
)
from nmtgrid.text.moses import TURKIC, Moses

# Why a caption is dropped: it has no word, or (in training) too many.
_REASONS = ("empty", "too_long")
_WORD = re.compile(r"\w")
_ESCAPE = re.compile(r"&(#\d+|[a-z]+);")
# Karpathy's names and ours.
_KARPATHY_SPLITS = {"train": "train", "val": "valid", "test": "test"}
_RESTVAL = "restval"

# Called with the number of pictures done and the total.
Report = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class CaptionPlan:
    """The caption processing of `preprocess`."""

    target_lang: str = "en"
    tokenize: Literal["moses", "none"] = "moses"
    """`none` uses the words of the file if it has them, or splits at spaces."""
    lowercase: bool = True
    max_words: int = 175
    """Training captions with more words are dropped."""

    @property
    def turkic_case(self) -> bool:
        """Whether lower-casing maps I to ı."""
        return self.lowercase and self.target_lang in TURKIC

    def faults(self) -> list[str]:
        """Return what is wrong with the settings."""
        faults = []
        if not directory.SPLIT_NAME.fullmatch(self.target_lang) or self.target_lang == SOURCE_LANG:
            faults.append(f"`--target-lang` must be a name such as `en`, not `{self.target_lang}`.")
        if self.max_words < 1:
            faults.append(f"`--max-words` must be at least 1, but is {self.max_words}.")
        return faults

    def words(self) -> Callable[[Caption], str]:
        """Return the function that turns a caption into its words, separated by single spaces.

        Punctuation tokens are left out, as in the evaluation of MS-COCO: captions with a full stop
        at the end are no better than those without.
        """
        moses = Moses(self.target_lang, self.tokenize == "moses", self.lowercase, self.turkic_case)

        def has_letter(token: str) -> bool:
            # Moses writes marks such as `&` as escapes, whose letters do not count.
            return _WORD.search(_ESCAPE.sub("", token)) is not None

        def words(caption: Caption) -> str:
            # The authors of the file chose these words, so none is filtered out.
            if self.tokenize == "none" and caption.tokens is not None:
                return moses.tokenize(" ".join(caption.tokens))
            text = moses.lower(caption.raw) if self.lowercase else caption.raw
            return " ".join(filter(has_letter, moses.tokenize(text).split(" ")))

        return words


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture of a split: name, captions, and a function that loads the features [regions, F]."""

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
    report: Report = lambda done, total: None,
) -> dict[str, Any]:
    """Write a dataset of pictures and return its manifest; `facts` are added to it.

    Raises ConfigError, InputError for a split with no caption left, DataError (existing folder),
    StorageError.
    """
    check(plan)
    started = time.monotonic()
    with directory.new_folder(out, overwrite) as folder:
        total = sum(map(len, splits.values()))
        builder = _SplitBuilder(folder, plan, source, total, report, plan.words())
        counts = {name: builder.write(name, pictures) for name, pictures in splits.items()}
        names = ["target_lang", "tokenize", "lowercase"]
        if plan.turkic_case:
            names.append("turkic_case")
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
        directory.write(folder, manifest)
    return manifest


@dataclasses.dataclass
class _SplitBuilder:
    """Writes splits into a folder; `files` collects sizes and hashes of the files."""

    folder: Path
    plan: CaptionPlan
    source: PictureSource
    total: int
    report: Report
    words: Callable[[Caption], str]
    done: int = 0
    files: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    def write(self, name: str, pictures: Iterable[Picture]) -> dict[str, Any]:
        """Write a split; return its counts."""
        pairs_read = pairs_kept = without = 0
        dropped: Counter[str] = Counter()
        language = self.plan.target_lang
        names = [f"text/{name}.{language}", f"raw/{name}.{language}", f"{FOLDER}/{name}.txt"]
        features = self.folder / FOLDER / f"{name}.safetensors"
        with (
            directory.open_line_files(self.folder, names) as files,
            PictureWriter(features, self.source) as writer,
        ):
            text, raw, picture_names = files.values()
            for picture in pictures:
                captions = self._filter(picture, dropped, is_training=name == "train")
                pairs_read += len(picture.captions)
                pairs_kept += len(captions)
                # Without captions a picture is of no use in training or scoring: it is not stored.
                if captions:
                    writer.append_picture(picture.features(), len(captions))
                    text.extend(_join_lines(words for words, _ in captions))
                    raw.extend(_join_lines(caption.raw for _, caption in captions))
                    picture_names.extend(_join_lines([picture.name]))
                else:
                    without += 1
                self.done += 1
                self.report(self.done, self.total)
            if not pairs_kept:
                advice = "Check the file of captions, or hold out fewer pictures."
                if dropped["too_long"]:
                    advice = f"Allow more words than `--max-words {self.plan.max_words}`."
                reasons = [f"{reason.replace('_', ' ')} {dropped[reason]:,}" for reason in _REASONS]
                raise InputError(
                    f"no caption is left in `{name}`: {pairs_read:,} were read "
                    f"(dropped: {', '.join(reasons)}).",
                    advice,
                )
        self.files.update({file: lines.facts for file, lines in files.items()})
        self.files[f"{FOLDER}/{name}.safetensors"] = directory.describe_file(features)
        return {
            **directory.split_counts(pairs_read, pairs_kept, dropped, _REASONS),
            "pictures": files[names[2]].count,
            "pictures_without_captions": without,
        }

    def _filter(
        self, picture: Picture, dropped: Counter[str], *, is_training: bool
    ) -> list[tuple[str, Caption]]:
        captions = []
        for caption in picture.captions:
            words = self.words(caption)
            if not words:
                dropped["empty"] += 1
            # Outside training every caption is a reference, however long.
            elif is_training and words.count(" ") >= self.plan.max_words:
                dropped["too_long"] += 1
            else:
                captions.append((words, caption))
        return captions


def _join_lines(lines: Iterable[str]) -> bytes:
    """Return the bytes of lines; line separators in a caption become spaces."""
    return "".join(f"{' '.join(line.split())}\n" for line in lines).encode()


@dataclasses.dataclass(frozen=True)
class CaptionSources:
    """The input files of a captioning dataset, and how they are divided into splits."""

    captions: Path
    features: Sequence[Path]
    held_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """A file of captions, or a number of pictures to hold out, for each split except train."""
    restval: bool = False
    """Whether to train on Karpathy's further 30,000 pictures too; table E.1 does not."""


def preprocess_captions(
    plan: CaptionPlan,
    sources: CaptionSources,
    out: Path,
    *,
    overwrite: bool = False,
    report: Report = lambda done, total: None,
) -> dict[str, Any]:
    """Build a dataset of pictures in `out`; return the manifest.

    Raises ConfigError, InputError, DataError (existing folder), StorageError.
    """
    check(plan)
    captioned, notes = _split(sources)
    features = FeatureFiles(sources.features)
    splits = {
        name: _with_features(name, pictures, features) for name, pictures in captioned.items()
    }
    # Names are those of features, so this also catches two pictures with the same features.
    owners: dict[str, str] = {}
    duplicates = []
    for split, pictures in splits.items():
        for picture in pictures:
            if picture.name in owners:
                duplicates.append(f"{picture.name} ({owners[picture.name]}, {split})")
            owners[picture.name] = split
    if duplicates:
        raise InputError(
            f"{len(duplicates):,} pictures occur twice: {list_names(duplicates)}.",
            "Each picture must be in exactly one split.",
        )
    notes["features_without_captions"] = len(features.names) - len(owners)
    source = PictureSource(features.size, features.kind)
    return build_pictures(
        plan, source, splits, out, {"notes": notes}, overwrite=overwrite, report=report
    )


def _split(sources: CaptionSources) -> tuple[dict[str, list[CaptionedPicture]], dict[str, int]]:
    """Return the pictures of each split, and notes for the manifest."""
    captioned = read_captions(sources.captions)
    if "" not in captioned:
        return _karpathy_splits(sources, captioned)
    if sources.restval:
        raise ConfigError(
            f"`--restval` needs Karpathy's splits, which {sources.captions} does not have.",
            "Leave it out.",
        )
    splits = {"train": captioned[""]}
    for name, held_out in sources.held_out.items():
        # Each is taken from what the previous one left, so that held-out splits cannot overlap.
        if is_whole_number(held_out):
            count = _count(name, held_out)
            splits["train"], splits[name] = _hold_out(splits["train"], count, name)
            continue
        others = read_captions(Path(held_out))
        if "" not in others:
            raise InputError(
                "it defines several splits (Karpathy's format), but a single split is needed.",
                "Give it with `--captions` only, or name a file in COCO's format.",
                path=Path(held_out),
            )
        splits[name] = others[""]
    return directory.in_order(splits), {}


def _count(name: str, text: str) -> int:
    try:
        return whole_number(text)
    except ValueError as fault:
        raise ConfigError(f"The number of pictures of `{name}`: {fault}") from fault


def _karpathy_splits(
    sources: CaptionSources, captioned: dict[str, list[CaptionedPicture]]
) -> tuple[dict[str, list[CaptionedPicture]], dict[str, int]]:
    if sources.held_out:
        raise ConfigError(
            f"{sources.captions} defines its own splits: leave out `--valid` and `--test`."
        )
    if "train" not in captioned or not captioned.keys() <= {*_KARPATHY_SPLITS, _RESTVAL}:
        raise InputError(
            f"the splits are {list_names(list(captioned))}.",
            "`train` is required; `restval`, `val` and `test` are optional.",
            path=sources.captions,
        )
    rest = captioned.pop(_RESTVAL, [])
    splits = {
        name: captioned[split] for split, name in _KARPATHY_SPLITS.items() if split in captioned
    }
    if sources.restval:
        splits["train"] = [*splits["train"], *rest]
    # The manifest notes how many pictures were left out: results depend on it.
    return splits, {"restval": 0 if sources.restval else len(rest)}


def _hold_out(
    train: list[CaptionedPicture], count: int, name: str
) -> tuple[list[CaptionedPicture], list[CaptionedPicture]]:
    """Return the rest of train, and `count` held-out pictures spread evenly over the file."""
    if not 0 < count < len(train):
        raise ConfigError(
            f"`{name}`: cannot hold out {count:,} of {len(train):,} pictures; some must be left on "
            "both sides.",
            "Give a number of pictures to hold out, or a file.",
        )
    # The middle of each of `count` equal parts.
    held_out = {(2 * part + 1) * len(train) // (2 * count) for part in range(count)}
    rest = [picture for index, picture in enumerate(train) if index not in held_out]
    return rest, [train[index] for index in sorted(held_out)]


def _with_features(
    name: str, captioned: list[CaptionedPicture], features: FeatureFiles
) -> list[Picture]:
    """Return the pictures with their features; each takes the name of its features."""
    pictures, missing, unclear = [], [], []
    for picture in captioned:
        keys = features.find(picture.keys)
        if not keys:
            missing.append(picture.name)
            continue
        if len(keys) > 1:
            unclear.append(" = ".join(keys))
        # Loaded only when written: the features of all pictures may not fit into memory.
        read = functools.partial(features.read, keys[0])
        pictures.append(Picture(keys[0], picture.captions, read))
    # One such picture shows that ids and file names are mixed up, perhaps for all others too.
    if unclear:
        raise InputError(
            f"{len(unclear):,} of {len(captioned):,} pictures of `{name}` have features under "
            f"several of their names: {list_names(unclear)}.",
            "Name all features by the pictures' ids, or all by the names of their files.",
        )
    if missing:
        raise InputError(
            f"{len(missing):,} of {len(captioned):,} pictures of `{name}` have no features: "
            f"{list_names(missing)}.",
            f"Features have names such as {list_names(features.names)}; a picture is looked up by "
            "its id, its file name, or its file name without extension. Give all feature files "
            "with `--features`, or remove these pictures from the captions.",
        )
    return pictures
