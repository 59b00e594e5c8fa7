"""`bpe learn`: completes a dataset directory with codes, vocabularies and encoded splits."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from nmtgrid.base.config import check
from nmtgrid.base.errors import ConfigError, InputError, StorageError
from nmtgrid.base.io.atomic import reason, remove_stale, temporary_path
from nmtgrid.base.io.workers import chunks, map_ordered, worker_faults
from nmtgrid.data import directory as manifests
from nmtgrid.data.binarise import region_facts, write_split
from nmtgrid.data.captioning.dataset import PictureSource, feature_vocabulary
from nmtgrid.text.bpe import Codes, learn
from nmtgrid.text.pipeline import Pipeline, TextFacts
from nmtgrid.text.shards import Block, read_block, split_file, split_lines
from nmtgrid.text.vocabulary import SPECIALS, Vocabulary

LARGEST = 4_000_000
CHUNK = 4000
"""Distinct words that are cut at once."""


class Counted(NamedTuple):
    """The counts of a block of text."""

    counts: Counter[str]
    words: int
    lines: int


def count_block(block: Block) -> Counted:
    """Return how often each word occurs in a block of tokenised text."""
    counts: Counter[str] = Counter()
    total = lines = 0
    for text in read_block(block):
        words = text.split()
        counts.update(words)
        total += len(words)
        lines += len(split_lines(text))
    return Counted(counts, total, lines)


class WordCounts:
    """Counts words; at most `largest` distinct ones are kept.

    Where there are more, the rarest are forgotten, which `forgotten` counts: this touches only
    words far too rare to matter for merges or vocabularies of usual sizes.
    """

    def __init__(self, largest: int = LARGEST) -> None:
        self.counts: Counter[str] = Counter()
        self.words = 0
        self.forgotten = 0
        self._largest = largest

    def add(self, lines: Iterable[str]) -> None:
        """Count the words of tokenised `lines`."""
        for line in lines:
            words = line.split()
            self.words += len(words)
            self.counts.update(words)
        self._forget_rare()

    def merge(self, counted: Counted) -> None:
        """Add the counts of a block."""
        self.words += counted.words
        self.counts.update(counted.counts)
        self._forget_rare()

    def _forget_rare(self) -> None:
        if len(self.counts) > self._largest:
            self._forget()

    def _forget(self) -> None:
        """Forget the rarest words until half of the room is free."""
        floor = 0
        while len(self.counts) > self._largest // 2:
            floor += 1
            rare = [word for word, count in self.counts.items() if count <= floor]
            for word in rare:
                del self.counts[word]
            self.forgotten += len(rare)


def merge_counts(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    """Return the sums of two counts."""
    merged = Counter(first)
    merged.update(second)
    return merged


def most_frequent(counts: Mapping[str, int], largest: int) -> dict[str, int]:
    """Return the `largest` most frequent words with their counts, in the order of `counts`."""
    if len(counts) <= largest:
        return dict(counts)
    floor = sorted(counts.values(), reverse=True)[largest - 1]
    above = sum(count > floor for count in counts.values())
    room = largest - above
    kept: dict[str, int] = {}
    for word, count in counts.items():
        if count > floor or (count == floor and room > 0):
            room -= count == floor
            kept[word] = count
    return kept


def count_units(
    words: Mapping[str, int],
    codes: Codes | None,
    workers: int = 1,
    kept: dict[str, str] | None = None,
    report: Callable[[int], None] | None = None,
) -> Mapping[str, int]:
    """Return how often each unit occurs, given the counts of the words.

    The units of the words in `kept` are put into it, between spaces. `report` is called with the
    number of further words done.
    """
    if codes is None:
        for word in kept or {}:
            cast(dict[str, str], kept)[word] = word
        return words
    units: Counter[str] = Counter()
    parts = chunks(words, CHUNK)
    # A process takes about as long to begin as to cut some chunks.
    enough = 1 + len(words) // (5 * CHUNK)
    for part, cut in map_ordered(_Cutter(codes), parts, min(workers, enough)):
        for word, text in zip(part, cut, strict=True):
            count = words[word]
            for unit in text.split(" "):
                units[unit] += count
            if kept is not None and word in kept:
                kept[word] = text
        if report is not None:
            report(len(part))
    return units


class _Cutter:
    """Cuts words into units; works in a process of its own."""

    def __init__(self, codes: Codes) -> None:
        self._codes = codes

    def __call__(self, words: Sequence[str]) -> list[str]:
        return [" ".join(self._codes.segment((word,))) for word in words]


MOST_KNOWN = 150_000
"""So many words of a language, the most frequent ones, are cut once for all processes."""
MOST_LEARNED = 1_000_000
"""Merges are learned from at most so many distinct words, the most frequent ones."""

Report = Callable[[str, int, int], None]
"""Is told the stage, and how much of how much of it is done."""


@dataclasses.dataclass(frozen=True)
class SubwordPlan:
    """Which units the words are cut into."""

    merges: int = 10000
    joint: bool = True
    """One set of merges for both languages, instead of one for each."""
    joint_vocabulary: bool = False
    """One vocabulary for both languages, of the units of both, as `model.tie=all` needs it."""
    words: bool = False
    """Whole words, no BPE."""
    min_count: int = 1
    """Types seen less often in training are left out of the vocabularies."""
    codes: tuple[str, ...] = ()
    """Existing codes: one file for both languages, or one for each."""
    source_vocabulary: str | None = None
    target_vocabulary: str | None = None
    """Existing dictionaries: ours, fairseq's, or one word per line."""
    workers: int = 1
    """Processes; what comes out does not depend on them."""

    def faults(self) -> list[str]:
        """Return what is wrong with the settings."""
        found = []
        if self.merges < 1:
            found.append(f"`--merges` must be at least 1, but is {self.merges}.")
        if self.min_count < 1:
            found.append(f"`--min-count` must be at least 1, but is {self.min_count}.")
        if self.words and self.codes:
            found.append("`--words` means that there are no merges: leave `--codes` out.")
        found += worker_faults(self.workers)
        if len(self.codes) > 2:
            found.append("Give `--codes` once, or twice: for the source and the target language.")
        if len(self.codes) == 1 and not self.joint:
            found.append("`--separate` needs `--codes` twice: for the source and the target.")
        if self.joint_vocabulary and (self.source_vocabulary or self.target_vocabulary):
            found.append(
                "`--joint-vocabulary` makes one of both languages: leave `--vocab-source` and "
                "`--vocab-target` out (or give both the same file, without it)."
            )
        return found

    @property
    def is_joint(self) -> bool:
        """Whether both languages share their codes."""
        return len(self.codes) == 1 or (self.joint and not self.codes)

    def for_pictures(self) -> SubwordPlan:
        """Return the plan for pictures. Raises ConfigError where source text is spoken of."""
        if self.joint_vocabulary or self.source_vocabulary or len(self.codes) > 1:
            raise ConfigError(
                "`--joint-vocabulary`, `--vocab-source` and a second `--codes` are about source "
                "text, but the sources of this dataset are pictures: leave them out."
            )
        return dataclasses.replace(self, joint=True)


def learn_subwords(folder: Path, plan: SubwordPlan, report: Report | None = None) -> dict[str, Any]:
    """Give the dataset in `folder` its codes, vocabularies and encoded splits; return the facts.

    What was there of an earlier run is replaced; while it is being replaced, and after an
    interruption just then, the dataset counts as one without a vocabulary. Raises ConfigError,
    InputError, DataError and StorageError.
    """
    check(plan)
    folder = Path(folder)
    started = time.monotonic()
    manifest = manifests.read(folder)
    work = _Learning(folder, manifest, plan, report or (lambda stage, done, total: None))
    remove_stale(folder / "units")
    building = temporary_path(folder / "units")
    try:
        try:
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir()
        except OSError as fault:
            raise StorageError(f"{folder} cannot be written: {reason(fault)}.") from fault
        pipeline, facts = work.pipeline()
        pipeline.save(building)
        splits = work.encode(pipeline, building)
        facts = {**facts, "seconds": round(time.monotonic() - started, 3)}
        _install(folder, building, manifest, facts, splits)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return {**facts, "splits": splits}


def _install(
    folder: Path,
    building: Path,
    manifest: dict[str, Any],
    facts: dict[str, Any],
    splits: Mapping[str, dict[str, Any]],
) -> None:
    """Move the new files into the dataset; the manifest speaks of them only when all are there."""
    old = [name for name in manifest["files"] if "/" not in name]
    bare = {key: value for key, value in manifest.items() if key not in ("units", "kind", "format")}
    bare["files"] = {name: fact for name, fact in manifest["files"].items() if name not in old}
    described = {path.name: manifests.describe_file(path) for path in sorted(building.iterdir())}
    if "units" in manifest or old:
        manifests.write(folder, bare)
    try:
        for name in old:
            (folder / name).unlink(missing_ok=True)
        for name in described:
            os.replace(building / name, folder / name)
    except OSError as fault:
        raise StorageError(
            f"{folder} could not be completed: {reason(fault)}.", "Run the same command again."
        ) from fault
    complete = {**bare, "units": {**facts, "splits": splits}}
    complete["files"] = {**bare["files"], **described}
    manifests.write(folder, complete)


class _Learning:
    """The stages: count words, learn merges, make vocabularies, encode."""

    def __init__(
        self, folder: Path, manifest: dict[str, Any], plan: SubwordPlan, report: Report
    ) -> None:
        self._folder = folder
        self._manifest = manifest
        self._plan = plan
        self._report = report
        self._text = manifest["text"]
        self._languages = (self._text["source_lang"], self._text["target_lang"])
        self._given = [
            Vocabulary.read_foreign(Path(path)) if path else None
            for path in (plan.source_vocabulary, plan.target_vocabulary)
        ]
        if (held := PictureSource.of(manifest)) is not None:
            self._plan = plan.for_pictures()
            self._given[0] = feature_vocabulary(held.size)
        if plan.min_count > 1 and None not in self._given:
            raise ConfigError(
                "`--min-count` has no effect on vocabularies that are given: leave it out."
            )
        self._pictures = held
        self._codes: list[Codes] = [Codes.load(path) for path in plan.codes]
        self._kept: list[dict[str, str]] = [{}, {}]

    def pipeline(self) -> tuple[Pipeline, dict[str, Any]]:
        """Return the new pipeline, and facts about how it came about."""
        plan = self._plan
        needs_codes = not plan.words and not self._codes
        needs_counts = needs_codes or None in self._given
        counts = [self._count(side) for side in (0, 1)] if needs_counts else []
        facts: dict[str, Any] = {}
        for name, count in zip(("source", "target"), counts, strict=False):
            facts[f"{name}_distinct_words"] = len(count.counts)
            facts[f"{name}_forgotten_words"] = count.forgotten
        if needs_codes:
            self._codes = self._learn([count.counts for count in counts], facts)
        codes: list[Codes | None] = [None, None]
        if self._codes:
            codes = [self._codes[0], self._codes[-1]]
        source, target = self._vocabularies([count.counts for count in counts], codes)
        facts = {
            "subwords": "words" if plan.words else "bpe",
            "joint": plan.is_joint,
            "joint_vocabulary": source.types == target.types,
            "merges": [len(held) for held in self._codes],
            "source_vocab_size": len(source),
            "target_vocab_size": len(target),
            **facts,
        }
        text = TextFacts(
            **self._text, subwords="words" if plan.words else "bpe", joint=plan.is_joint
        )
        return Pipeline(text, source, target, *codes), facts

    def encode(self, pipeline: Pipeline, building: Path) -> dict[str, dict[str, Any]]:
        """Write each split as arrays; return its lengths."""
        known = [{word: text.split(" ") for word, text in kept.items()} for kept in self._kept]
        result = {}
        for name, split in self._manifest["splits"].items():
            advance = self._advance(f"encode {name}", split["pairs_kept"])
            facts = write_split(
                building / f"{name}.safetensors", pipeline,
                [self._text_file(name, side) for side in (0, 1)], advance,
                known=known, workers=self._plan.workers,
            )  # fmt: skip
            facts = {**region_facts(self._folder, name, self._pictures), **facts}
            for count in facts.pop("pairs"):
                if count != split["pairs_kept"]:
                    raise StorageError(
                        f"{self._folder}: `{name}` has {count:,} pairs where the manifest says "
                        f"{split['pairs_kept']:,}.",
                        "Make the dataset again.",
                    )
            result[name] = facts
        return result

    def _text_file(self, name: str, side: int) -> Path | None:
        """Return the tokenised text of a side, None where it is pictures."""
        if side == 0 and self._pictures is not None:
            return None
        language = self._languages[side]
        return manifests.check_file(self._folder, self._manifest, f"text/{name}.{language}")

    def _advance(self, stage: str, total: int) -> Callable[[int], None]:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            self._report(stage, done, total)

        return advance

    def _count(self, side: int) -> WordCounts:
        counts = WordCounts()
        advance = self._advance(
            f"count {self._languages[side]}", self._manifest["splits"]["train"]["pairs_kept"]
        )
        text = self._text_file("train", side)
        blocks = [] if text is None else split_file(text)
        workers = min(self._plan.workers, len(blocks))
        for _, counted in map_ordered(count_block, blocks, workers):
            counts.merge(counted)
            advance(counted.lines)
        return counts

    def _learn(self, counts: list[Mapping[str, int]], facts: dict[str, Any]) -> list[Codes]:
        plan = self._plan
        seen = [merge_counts(counts[0], counts[1])] if plan.is_joint else counts
        words = [most_frequent(count, MOST_LEARNED) for count in seen]
        facts["words_learned_from"] = [len(held) for held in words]
        facts["words_not_learned_from"] = [
            len(count) - len(held) for count, held in zip(seen, words, strict=True)
        ]
        return [
            learn(held, plan.merges, lambda done: self._report("learn", done, plan.merges))
            for held in words
        ]

    def _vocabularies(
        self, words: Sequence[Mapping[str, int]], codes: Sequence[Codes | None]
    ) -> list[Vocabulary]:
        """Return the given vocabularies, or those of the units of the training text."""
        if self._plan.joint_vocabulary:
            units = [self._units(side, words[side], codes[side]) for side in (0, 1)]
            both = self._vocabulary(merge_counts(*units))
            return [both, both]
        return [
            held or self._vocabulary(self._units(side, words[side], codes[side]))
            for side, held in enumerate(self._given)
        ]

    def _units(self, side: int, words: Mapping[str, int], codes: Codes | None) -> Mapping[str, int]:
        """Return the counts of the units, and remember how the most frequent words are cut."""
        kept = self._kept[side] = dict.fromkeys(most_frequent(words, MOST_KNOWN), "")
        advance = self._advance(f"cut words of {self._languages[side]}", len(words))
        return count_units(words, codes, self._plan.workers, kept, advance)

    def _vocabulary(self, units: Mapping[str, int]) -> Vocabulary:
        vocabulary = Vocabulary.from_counts(units, self._plan.min_count)
        if len(vocabulary) == len(SPECIALS):
            raise InputError(
                f"No type occurs {self._plan.min_count:,} times in the training text.",
                "Lower `--min-count`.",
            )
        return vocabulary
