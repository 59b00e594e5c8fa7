"""`bpe learn`: adds codes, vocabularies and binarised splits to a dataset directory."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from nmtgrid.base.config import check
from nmtgrid.base.errors import ConfigError, DataError, InputError, StorageError
from nmtgrid.base.io.atomic import (
    link_target,
    reason,
    remove_folder,
    remove_stale,
    temporary_path,
)
from nmtgrid.base.io.lock import FolderLock
from nmtgrid.base.io.records import convert_file
from nmtgrid.base.io.workers import chunks, map_ordered, worker_faults
from nmtgrid.data import directory
from nmtgrid.data.binarise import Lengths, write_split
from nmtgrid.data.captioning.dataset import FOLDER, Pictures, PictureSource
from nmtgrid.text.bpe import Codes
from nmtgrid.text.bpe_learning import learn
from nmtgrid.text.pipeline import Pipeline, Segmenter, TextFacts
from nmtgrid.text.sentencepiece_model import SentencePieceModel, learn_pieces
from nmtgrid.text.shards import Block, read_block, split_file, split_lines
from nmtgrid.text.vocabulary import SPECIALS, Vocabulary

# Number of distinct words to count at once.
_LARGEST = 4_000_000
# Number of distinct words that a worker segments at once.
CHUNK = 4000
# Number of the most frequent words of a language that are segmented once for all processes.
MOST_KNOWN = 150_000
# Number of the most frequent distinct words that merges are learned from.
MOST_LEARNED = 1_000_000

# Called with the stage, and how much of it is done, of how much in all.
Report = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class SubwordPlan:
    """The settings of subword segmentation."""

    merges: int = 10000
    joint: bool = True
    """One set of merges (or SentencePiece model) for both languages instead of one for each."""
    joint_vocabulary: bool = False
    """One vocabulary for both languages, with the units of both, as `model.tie=all` requires."""
    method: Literal["bpe", "sentencepiece"] = "bpe"
    pieces: int = 10000
    """Approximate number of pieces that a SentencePiece model learns."""
    words: bool = False
    """Whole words instead of subwords."""
    min_count: int = 1
    """Types seen less often in training are left out of the vocabularies."""
    codes: tuple[str, ...] = ()
    """Existing codes or models: one file for both languages, or one for each."""
    source_vocabulary: str | None = None
    target_vocabulary: str | None = None
    """Existing dictionaries: ours, fairseq's, or one word per line."""
    workers: int = 1
    """Number of processes; the result does not depend on it."""

    def faults(self) -> list[str]:
        """Return what is wrong with the settings."""
        faults = []
        if self.merges < 1:
            faults.append(f"`--merges` must be at least 1, but is {self.merges}.")
        if self.pieces < 1:
            faults.append(f"`--pieces` must be at least 1, but is {self.pieces}.")
        if self.min_count < 1:
            faults.append(f"`--min-count` must be at least 1, but is {self.min_count}.")
        if self.words and self.codes:
            faults.append("`--words` uses whole words instead of subwords: leave out `--codes`.")
        faults += worker_faults(self.workers)
        option = "`--model`" if self.method == "sentencepiece" else "`--codes`"
        if len(self.codes) > 2:
            faults.append(f"Give {option} once, or twice: for the source and the target language.")
        if len(self.codes) == 1 and not self.joint:
            faults.append(f"`--separate` needs {option} twice: for the source and the target.")
        if self.joint_vocabulary and (self.source_vocabulary or self.target_vocabulary):
            faults.append(
                "`--joint-vocabulary` builds one vocabulary for both languages: leave out "
                "`--vocab-source` and `--vocab-target` (or give both the same file, without "
                "`--joint-vocabulary`)."
            )
        return faults

    @property
    def subwords(self) -> Literal["bpe", "sentencepiece", "words"]:
        """The kind of the units."""
        return "words" if self.words else self.method

    @property
    def is_joint(self) -> bool:
        """Whether both languages share their codes."""
        return len(self.codes) == 1 or (self.joint and not self.codes)


def learn_subwords(
    folder: Path,
    plan: SubwordPlan,
    report: Report = lambda stage, done, total: None,
    *,
    overwrite: bool = True,
) -> dict[str, Any]:
    """Add codes, vocabularies and binarised splits to the dataset in `folder`; return the facts.

    The files of an earlier run are replaced if `overwrite` is set; during the replacement, and if
    it is interrupted, the dataset counts as one without a vocabulary. Raises ConfigError,
    InputError, DataError and StorageError.
    """
    check(plan)
    folder = Path(folder)
    # Read first: a folder that is not a dataset gets no lock.
    directory.read(folder)
    with FolderLock(folder, "nmtgrid bpe learn", beside=True):
        manifest = directory.read(folder)
        if not overwrite and any(name.startswith("vocab.") for name in manifest["files"]):
            raise DataError(
                f"The dataset {folder} has vocabularies already.",
                "Replace them with `--overwrite`. Models that were trained with them will still "
                "translate, but `train --resume` cannot continue with other vocabularies.",
            )
        return _learn_subwords(folder, manifest, plan, report)


def _learn_subwords(
    folder: Path, manifest: dict[str, Any], plan: SubwordPlan, report: Report
) -> dict[str, Any]:
    started = time.monotonic()
    learner = _Learner(folder, manifest, plan, report)
    remove_stale(folder / "units")
    building = temporary_path(folder / "units")
    try:
        try:
            remove_folder(building)
            building.mkdir()
        except OSError as fault:
            raise StorageError(f"{folder} cannot be written: {reason(fault)}.") from fault
        pipeline, facts = learner.pipeline()
        pipeline.save(building)
        splits = learner.binarise(pipeline, building)
        facts = {**facts, "seconds": round(time.monotonic() - started, 3)}
        _install(folder, building, manifest, {**facts, "splits": splits})
    finally:
        remove_folder(building)
    return {**facts, "splits": splits}


def _install(folder: Path, building: Path, manifest: dict[str, Any], units: dict[str, Any]) -> None:
    """Move the new files into the dataset; the manifest names them only once all are there."""
    # Files of this stage are in the directory itself, those of `preprocess` in subfolders.
    old = [name for name in manifest["files"] if "/" not in name]
    bare = {key: value for key, value in manifest.items() if key != "units"}
    bare["files"] = {name: fact for name, fact in manifest["files"].items() if name not in old}
    new = {path.name: directory.describe_file(path) for path in sorted(building.iterdir())}
    # If killed from here on, the dataset has no vocabulary, but never a mixture of two runs.
    if "units" in manifest or old:
        directory.write(folder, bare)
    try:
        for name in old:
            link_target(folder / name).unlink(missing_ok=True)
            if name not in new:
                (folder / name).unlink(missing_ok=True)
        for name in new:
            # Renamed if the target is on the same disk, else copied.
            shutil.move(building / name, link_target(folder / name))
    except OSError as fault:
        raise StorageError(
            f"{folder} could not be completed: {reason(fault)}.", "Run the same command again."
        ) from fault
    directory.write(folder, {**bare, "units": units, "files": {**bare["files"], **new}})


class _Learner:
    """The stages: count words, learn merges, build vocabularies, binarise."""

    def __init__(
        self, folder: Path, manifest: dict[str, Any], plan: SubwordPlan, report: Report
    ) -> None:
        self._folder, self._manifest = folder, manifest
        self._plan, self._report = plan, report
        self._text = manifest["text"]
        self._languages = (self._text["source_lang"], self._text["target_lang"])
        self._existing = [
            Vocabulary.read_foreign(Path(path)) if path else None
            for path in (plan.source_vocabulary, plan.target_vocabulary)
        ]
        self._pictures = PictureSource.of(manifest)
        if self._pictures is not None:
            is_separate = not plan.joint or len(plan.codes) > 1
            if is_separate or plan.joint_vocabulary or plan.source_vocabulary:
                raise ConfigError(
                    "`--separate`, `--joint-vocabulary`, `--vocab-source` and a second `--codes` "
                    "apply to source text, but the sources of this dataset are pictures: leave "
                    "them out."
                )
            # Each feature is a type, in place of those of a source language.
            types = [f"feature{number}" for number in range(1, self._pictures.size + 1)]
            self._existing[0] = Vocabulary(types)
        if plan.min_count > 1 and None not in self._existing:
            raise ConfigError(
                "`--min-count` has no effect, because the vocabularies are given: leave it out."
            )
        kind = SentencePieceModel if plan.method == "sentencepiece" else Codes
        self._codes: list[Segmenter] = [kind.load(path) for path in plan.codes]
        self._segmented: list[dict[str, str]] = [{}, {}]
        """For each side the subwords, separated by spaces, of its most frequent words."""

    def pipeline(self) -> tuple[Pipeline, dict[str, Any]]:
        """Return the new pipeline, and facts about it for the manifest."""
        plan = self._plan
        needs_codes = not plan.words and not self._codes
        needs_counts = needs_codes or None in self._existing
        counts = [self._count_words(side) for side in (0, 1)] if needs_counts else []
        facts: dict[str, Any] = {}
        for name, count in zip(("source", "target"), counts, strict=False):
            facts[f"{name}_distinct_words"] = len(count.counts)
            facts[f"{name}_forgotten_words"] = count.pruned
        words = [count.counts for count in counts]
        if needs_codes:
            self._codes = self._learn_codes(words, facts)
        # Joint codes serve both sides.
        codes = [self._codes[0], self._codes[-1]] if self._codes else [None, None]
        if plan.joint_vocabulary:
            # `tie=all` shares one embedding matrix, so both sides need the same ids.
            units = [Counter(self._count_units(side, words[side], codes[side])) for side in (0, 1)]
            source = target = self._vocabulary(units[0] + units[1], *self._languages)
        else:
            source, target = (
                vocabulary
                or self._vocabulary(self._count_units(side, words[side], codes[side]), language)
                for side, (vocabulary, language) in enumerate(
                    zip(self._existing, self._languages, strict=True)
                )
            )
        sizes = "pieces" if plan.method == "sentencepiece" else "merges"
        facts = {
            "subwords": plan.subwords,
            "joint": plan.is_joint,
            "joint_vocabulary": source.types == target.types,
            sizes: [len(codes) for codes in self._codes],
            "source_vocab_size": len(source),
            "target_vocab_size": len(target),
            **facts,
        }
        # As on opening: entries that later versions may have added are ignored.
        stored = self._text | {"subwords": plan.subwords, "joint": plan.is_joint}
        text = convert_file(self._folder / directory.NAME, stored, TextFacts)
        return Pipeline(text, source, target, *codes), facts

    def binarise(self, pipeline: Pipeline, building: Path) -> dict[str, dict[str, Any]]:
        """Write each split as arrays; return its lengths."""
        segmented = [
            {word: subwords.split() for word, subwords in words.items()}
            for words in self._segmented
        ]
        facts_of_splits = {}
        for name, split in self._manifest["splits"].items():
            facts = write_split(
                building / f"{name}.safetensors",
                pipeline,
                [self._text_file(name, side) for side in (0, 1)],
                self._progress(f"encode {name}", split["pairs_kept"]),
                segmented=segmented,
                workers=self._plan.workers,
            )
            if self._pictures is not None:
                pictures = Pictures(self._folder / FOLDER / f"{name}.safetensors", self._pictures)
                lengths = Lengths(pictures.regions.tolist()).summary()
                facts = {"source_lengths": lengths, "source_unknown": 0, **facts}
            for count in facts.pop("pairs"):
                if count != split["pairs_kept"]:
                    raise StorageError(
                        f"{self._folder}: `{name}` has {count:,} pairs where the manifest says "
                        f"{split['pairs_kept']:,}.",
                        "Make the dataset again.",
                    )
            facts_of_splits[name] = facts
        return facts_of_splits

    def _text_file(self, name: str, side: int) -> Path | None:
        """Return the file of tokenised text of a side, or None if the side is pictures."""
        if side == 0 and self._pictures is not None:
            return None
        file = f"text/{name}.{self._languages[side]}"
        return directory.check_file(self._folder, self._manifest, file)

    def _progress(self, stage: str, total: int) -> Callable[[int], None]:
        """Return a function that reports a number of further steps of a stage."""
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            self._report(stage, done, total)

        return advance

    def _count_words(self, side: int) -> WordCounts:
        counts = WordCounts()
        pairs = self._manifest["splits"]["train"]["pairs_kept"]
        advance = self._progress(f"count {self._languages[side]}", pairs)
        text = self._text_file("train", side)
        blocks = [] if text is None else split_file(text)
        workers = min(self._plan.workers, len(blocks))
        for _, (words, lines) in map_ordered(_count_block, blocks, workers):
            counts.add(words)
            advance(lines)
        return counts

    def _learn_codes(self, counts: list[Counter[str]], facts: dict[str, Any]) -> list[Segmenter]:
        merges = self._plan.merges
        texts = [counts[0] + counts[1]] if self._plan.is_joint else counts
        frequent = [most_frequent(words, MOST_LEARNED) for words in texts]
        facts["words_learned_from"] = [len(words) for words in frequent]
        facts["words_not_learned_from"] = [
            len(words) - len(learned) for words, learned in zip(texts, frequent, strict=True)
        ]
        if self._plan.method == "sentencepiece":
            return [learn_pieces(words, self._plan.pieces) for words in frequent]
        return [
            learn(words, merges, lambda done: self._report("learn", done, merges))
            for words in frequent
        ]

    def _count_units(
        self, side: int, words: Mapping[str, int], codes: Segmenter | None
    ) -> Mapping[str, int]:
        """Return the counts of the units, and keep the subwords of the most frequent words."""
        segmented = self._segmented[side] = dict.fromkeys(most_frequent(words, MOST_KNOWN), "")
        advance = self._progress(f"cut words of {self._languages[side]}", len(words))
        counts = count_units(words, codes, self._plan.workers, segmented, advance)
        if isinstance(codes, SentencePieceModel):
            # Unknown characters are output as they are, and are not types.
            return {unit: count for unit, count in counts.items() if unit in codes}
        return counts

    def _vocabulary(self, units: Mapping[str, int], *languages: str) -> Vocabulary:
        vocabulary = Vocabulary.from_counts(units, self._plan.min_count)
        if len(vocabulary) == len(SPECIALS):
            raise InputError(
                f"No type occurs {self._plan.min_count:,} times in the training text in "
                f"{' and '.join(languages)}.",
                "Lower `--min-count`.",
            )
        return vocabulary


def _count_block(block: Block) -> tuple[Counter[str], int]:
    """Return the counts of the words and the number of lines."""
    counts: Counter[str] = Counter()
    lines = 0
    for text in read_block(block):
        counts.update(text.split())
        lines += len(split_lines(text))
    return counts, lines


class WordCounts:
    """Counts of words; the rarest are pruned when there are more than `largest` distinct ones.

    `pruned` is their number: they are far too rare to matter for merges or vocabularies of usual
    sizes.
    """

    def __init__(self, largest: int = _LARGEST) -> None:
        self.counts: Counter[str] = Counter()
        self.pruned = 0
        self._largest = largest

    def add(self, counts: Mapping[str, int]) -> None:
        """Add the counts of a text."""
        self.counts.update(counts)
        if len(self.counts) <= self._largest:
            return
        # Down to half of the limit, so that this is rare.
        floor = 0
        while len(self.counts) > self._largest // 2:
            floor += 1
            rare = [word for word, count in self.counts.items() if count <= floor]
            for word in rare:
                del self.counts[word]
            self.pruned += len(rare)


def most_frequent(counts: Mapping[str, int], largest: int) -> dict[str, int]:
    """Return the `largest` most frequent words with their counts, in the order of `counts`."""
    if len(counts) <= largest:
        return dict(counts)
    # The sort is stable: of equally frequent words the first ones are taken.
    frequent = set(sorted(counts, key=counts.__getitem__, reverse=True)[:largest])
    return {word: count for word, count in counts.items() if word in frequent}


def count_units(
    words: Mapping[str, int],
    codes: Segmenter | None,
    workers: int,
    segmented: dict[str, str],
    report: Callable[[int], None],
) -> Mapping[str, int]:
    """Return the counts of the units, computed from the counts of the words.

    The words in `segmented` get their subwords, separated by spaces, as values. `report` is called
    with the number of further words done.
    """
    if codes is None:
        segmented.update({word: word for word in segmented})
        return words
    units: Counter[str] = Counter()
    # A process takes about as long to start as to segment some chunks.
    useful = 1 + len(words) // (5 * CHUNK)
    segment = partial(_segment, codes)
    for part, texts in map_ordered(segment, chunks(words, CHUNK), min(workers, useful)):
        for word, text in zip(part, texts, strict=True):
            for unit in text.split():
                units[unit] += words[word]
            if word in segmented:
                segmented[word] = text
        report(len(part))
    return units


def _segment(codes: Segmenter, words: Sequence[str]) -> list[str]:
    return [" ".join(codes.segment((word,))) for word in words]
