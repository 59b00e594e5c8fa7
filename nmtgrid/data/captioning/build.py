"""From captions and features to a dataset directory of pictures, with everything counted."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from nmtgrid import __version__
from nmtgrid.base.config import check
from nmtgrid.base.errors import InputError
from nmtgrid.base.io.atomic import atomic_file
from nmtgrid.data import manifest as manifests
from nmtgrid.data.captioning.captions import FOLDER, SOURCE_LANG, PictureSource, PictureWriter
from nmtgrid.data.captioning.coco import Caption
from nmtgrid.data.directory import new_folder
from nmtgrid.data.writing import LineFile
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
