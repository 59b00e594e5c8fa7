"""From parallel text to a dataset directory: tokenised, filtered, with everything counted."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from nmtgrid import __version__
from nmtgrid.base.config import check, to_json
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.base.io.text import Meter, empty_file_error, find_text, is_plain, open_text, read_lines
from nmtgrid.base.io.workers import chunks, map_ordered, worker_faults
from nmtgrid.data import directory as manifests
from nmtgrid.data.directory import SplitWriter, new_folder
from nmtgrid.data.toy.corpus import ToyPair, toy_splits
from nmtgrid.text.cleaning import (
    REASONS,
    CleanedShard,
    Cleaner,
    Filters,
    PairShard,
    RawPair,
    to_shards,
)
from nmtgrid.text.iwslt import ENDINGS, read_xml
from nmtgrid.text.moses import Moses
from nmtgrid.text.shards import LineShard, ShardReader

_CHUNK = 1000
_MISSING = object()


@dataclasses.dataclass(frozen=True)
class ParallelFiles:
    """Pairs of files, one after the other: line N of a source file belongs to line N of its target.

    `notes` counts by file what was put right or is uncommon in it.
    """

    pairs: list[tuple[Path, Path]]
    xml: bool
    notes: dict[str, Counter[str]] = dataclasses.field(default_factory=dict)

    @classmethod
    def find(cls, prefixes: Sequence[str], languages: tuple[str, str], xml: bool) -> ParallelFiles:
        """Return the files with these prefixes. Raises InputError naming what is missing."""
        endings = ENDINGS if xml else ("",)
        source, target = languages
        return cls(
            [(find_text(p, source, endings), find_text(p, target, endings)) for p in prefixes], xml
        )

    @property
    def paths(self) -> list[Path]:
        """All files."""
        return [path for pair in self.pairs for path in pair]

    @property
    def noted(self) -> dict[str, dict[str, int]]:
        """The notes that are not zero, by file name."""
        found = {file: {note: n for note, n in counts.items() if n}
                 for file, counts in self.notes.items()}  # fmt: skip
        return {file: counts for file, counts in found.items() if counts}

    def parts(self, meter: Meter | None = None) -> Iterator[PairShard]:
        """Yield the pairs in parts. Plain files are not looked into here: `Lines.read` does that.

        Raises InputError when two files differ in their number of lines, and for what
        `text.files.read_lines` refuses.
        """
        for source, target in self.pairs:
            if self.xml or not (is_plain(source) and is_plain(target)):
                rows = ((*pair, "") for pair in self._read_pair(source, target, meter))
                yield from to_shards(chunks(rows, _CHUNK))
            else:
                yield from self._cut_pair(source, target, meter)

    def note(self, part: PairShard, cleaned: CleanedShard) -> None:
        """Add what was noted of a part to the notes on its files."""
        for lines, found in zip((part.source, part.target), cleaned.notes, strict=True):
            if lines.path:
                self.notes.setdefault(Path(lines.path).name, Counter()).update(found)

    def _cut_pair(self, source: Path, target: Path, meter: Meter | None) -> Iterator[PairShard]:
        done = 0
        with open_text(source, meter) as first, open_text(target, meter) as second:
            sides = ShardReader(first, source), ShardReader(second, target)
            while True:
                raw, count = sides[0].some(done + 1)
                other, found = sides[1].exactly(count, done + 1)
                if not done and not (count and found):
                    raise empty_file_error(target if count else source)
                more = 0 if count else sides[1].rest()
                if found < count or more:
                    totals = [done + count + sides[0].rest(), done + found + more]
                    raise _unequal((source, target), totals, self.xml)
                if not count:
                    return
                yield PairShard(
                    LineShard(raw, str(source), done + 1), LineShard(other, str(target), done + 1)
                )
                done += count

    def _read_pair(
        self, source: Path, target: Path, meter: Meter | None
    ) -> Iterator[tuple[str, str]]:
        sources, targets = self._lines(source, meter), self._lines(target, meter)
        count = 0
        while True:
            source_line, target_line = next(sources, _MISSING), next(targets, _MISSING)
            if isinstance(source_line, str) and isinstance(target_line, str):
                count += 1
                yield source_line, target_line
            elif source_line is target_line:
                return
            else:
                break
        is_source_longer = isinstance(source_line, str)
        more = count + 1 + sum(1 for _ in (sources if is_source_longer else targets))
        totals = [more, count] if is_source_longer else [count, more]
        raise _unequal((source, target), totals, self.xml)

    def _lines(self, path: Path, meter: Meter | None) -> Iterator[str]:
        notes = self.notes.setdefault(path.name, Counter())
        lines = read_lines(path, notes, meter=meter)
        return read_xml(lines, str(path)) if self.xml else lines


def _unequal(paths: tuple[Path, Path], totals: list[int], xml: bool) -> InputError:
    longer = totals[1] > totals[0]
    more, fewer = max(totals), min(totals)
    return InputError(
        f"this file has {more:,} lines of text, but {paths[not longer]} has {fewer:,}.",
        "The two must be parallel: find the place where they part and mend it.",
        path=paths[longer],
        line=0 if xml else fewer + 1,
    )


class SplitBuilder:
    """Writes splits into a folder; `files` gathers the sizes and hashes of what it wrote."""

    def __init__(
        self,
        folder: Path,
        languages: tuple[str, str],
        *,
        workers: int = 1,
        truth: bool = False,
        report: Callable[[int], None] | None = None,
    ) -> None:
        """`truth`: what is known of the pairs is kept; `report` is told the pairs done so far."""
        self._folder = folder
        self._languages = languages
        self._workers = workers
        self._truth = truth
        self._report = report
        self._done = 0
        self.files: dict[str, dict[str, Any]] = {}

    def build(
        self,
        name: str,
        parts: Iterable[PairShard],
        cleaner: Cleaner,
        cut_every: int | None = None,
        note: Callable[[PairShard, CleanedShard], None] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Write the split `name`; return its counts.

        Every `cut_every`-th kept pair goes to the split `valid` instead, whose counts are then
        returned too. `note` is told of each part.
        """
        dropped: Counter[str] = Counter()
        read = kept = 0
        with contextlib.ExitStack() as stack:
            writer = stack.enter_context(self._writer(name).open())
            cut = stack.enter_context(self._writer("valid").open()) if cut_every else None
            for part, cleaned in map_ordered(cleaner, parts, self._workers):
                if note is not None:
                    note(part, cleaned)
                dropped.update(cleaned.dropped)
                read += cleaned.read
                for (kind, side), block in _blocks(cleaned).items():
                    if cut is not None and cut_every is not None and block:
                        block, moved = _cut(block, kept, cut_every)
                        cut.write(kind, side, moved)
                    writer.write(kind, side, block)
                kept += cleaned.kept
                self._tell(cleaned.read)
        counts = {name: _counts(read, writer.count, dropped)}
        self.files.update(writer.facts)
        if cut is not None:
            counts[name]["moved_to_valid"] = cut.count
            counts["valid"] = _counts(cut.count, cut.count, Counter())
            self.files.update(cut.facts)
        return counts

    def _writer(self, name: str) -> SplitWriter:
        return SplitWriter(self._folder, name, self._languages, truth=self._truth)

    def _tell(self, pairs: int) -> None:
        self._done += pairs
        if self._report is not None:
            self._report(self._done)


def _blocks(cleaned: CleanedShard) -> dict[tuple[str, int], bytes]:
    """Return the blocks of lines by kind and side."""
    sides = {
        (kind, side): block
        for kind, blocks in (("text", cleaned.text), ("raw", cleaned.raw))
        for side, block in enumerate(blocks)
    }
    return {**sides, ("truth", 0): cleaned.truth}


def _cut(block: bytes, before: int, every: int) -> tuple[bytes, bytes]:
    """Return what stays and what is moved; `before` lines came before those of the block."""
    lines = [line + b"\n" for line in block.split(b"\n")[:-1]]
    first = every - 1 - before % every
    moved = lines[first::every]
    del lines[first::every]
    return b"".join(lines), b"".join(moved)


def _counts(read: int, kept: int, dropped: Counter[str]) -> dict[str, Any]:
    return {
        "pairs_read": read,
        "pairs_kept": kept,
        "dropped": {reason: dropped[reason] for reason in REASONS},
    }


_TOY_CHUNK = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Report = Callable[[Meter, int], None]
"""Is told how much has been read, and the number of pairs done."""


@dataclasses.dataclass(frozen=True)
class TextPlan:
    """What `preprocess` does to the text."""

    source_lang: str
    target_lang: str
    tokenize: Literal["moses", "none"] = "moses"
    lowercase: bool = False
    filters: Filters = dataclasses.field(default_factory=Filters)
    valid_every: int | None = None
    """Every so many-th pair of the filtered training text goes to validation instead."""
    workers: int = 1

    def faults(self) -> list[str]:
        """Return what is wrong with the settings."""
        found = []
        for option, language in (("source", self.source_lang), ("target", self.target_lang)):
            if not _NAME.fullmatch(language):
                found.append(f"`--{option}-lang` must be a suffix such as `de`, not `{language}`.")
        if self.source_lang == self.target_lang:
            found.append(f"`--source-lang` and `--target-lang` are both `{self.source_lang}`.")
        if self.valid_every is not None and self.valid_every < 2:
            found.append(f"`--valid-every` must be at least 2, but is {self.valid_every}.")
        found += worker_faults(self.workers)
        return found

    @property
    def languages(self) -> tuple[str, str]:
        """(source, target)."""
        return self.source_lang, self.target_lang

    def cleaner(self, filters: Filters | None, *, raw: bool = True) -> Cleaner:
        """Return what tokenises pairs, and filters them unless `filters` is None."""
        source, target = (
            Moses(language, self.tokenize == "moses", self.lowercase) for language in self.languages
        )
        return Cleaner(source, target, filters, raw=raw)

    def describe(self) -> dict[str, Any]:
        """Return the entries `text` and `filters` of the manifest."""
        values = to_json(self)
        names = ("source_lang", "target_lang", "tokenize", "lowercase")
        return {
            "text": {name: values[name] for name in names},
            "filters": {**values["filters"], "valid_every": self.valid_every},
        }


def preprocess_files(
    plan: TextPlan,
    prefixes: Mapping[str, list[str]],
    out: Path,
    *,
    xml: bool = False,
    overwrite: bool = False,
    report: Report | None = None,
) -> dict[str, Any]:
    """Build a dataset in `out` from the files with these prefixes; return the manifest.

    `prefixes` maps `train`, `valid` and the names of tests to prefixes, whose files are read one
    after the other. Raises ConfigError, InputError, DataError (existing folder), StorageError.
    """
    _check(plan, prefixes)
    files = {
        name: ParallelFiles.find(found, plan.languages, xml) for name, found in prefixes.items()
    }
    place = out.resolve()
    inside = [p for held in files.values() for p in held.paths if place in p.resolve().parents]
    if inside:
        raise ConfigError(
            f"{inside[0]} lies in the folder {out} that would be replaced.",
            "Choose another `--out`, or move the text out of it.",
        )
    meter = Meter(path for found in files.values() for path in found.paths)
    sources = {name: found.parts(meter) for name, found in files.items()}
    return _build(
        plan,
        sources,
        out,
        overwrite,
        None if report is None else lambda done: report(meter, done),
        files=files,
    )


def preprocess_toy(
    plan: TextPlan,
    pairs: int,
    out: Path,
    *,
    seed: int = 1,
    difficulty: int = 1,
    overwrite: bool = False,
    report: Report | None = None,
) -> dict[str, Any]:
    """Build a dataset in `out` from the toy corpus with `pairs` training pairs.

    `truth/<split>.jsonl` keeps for each pair that is kept what is known of it: `reads` and `links`
    in words. Return the manifest.
    """
    if plan.valid_every:
        raise ConfigError("`--toy` has a validation text of its own: leave `--valid-every` out.")
    _check(plan, {"train": [""], "valid": [""]})
    if plan.tokenize != "moses":
        raise ConfigError("`--toy` needs `--tokenize moses`: its truth counts Moses' words.")
    splits = toy_splits(pairs, seed=seed, difficulty=difficulty)
    sources = {
        name: to_shards(chunks(_toy_rows(split), _TOY_CHUNK)) for name, split in splits.items()
    }
    facts = {"pairs": pairs, "seed": seed, "difficulty": difficulty}
    tell = None if report is None else lambda done: report(Meter(), done)
    return _build(plan, sources, out, overwrite, tell, toy=facts)


def _check(plan: TextPlan, prefixes: Mapping[str, list[str]]) -> None:
    check(plan)
    faults = [
        f"A split cannot be called `{name}`; use letters, digits, `.`, `_` and `-`."
        for name in prefixes
        if not _NAME.fullmatch(name)
    ]
    if not prefixes.get("train"):
        faults.append("There is no training text: give `--train`.")
    if plan.valid_every and "valid" in prefixes:
        faults.append("Give either validation files or `--valid-every`, not both.")
    if faults:
        raise ConfigError(faults)


def _toy_rows(pairs: Iterable[ToyPair]) -> Iterator[RawPair]:
    for pair in pairs:
        truth = {"reads": list(pair.reads), "links": [list(link) for link in pair.links]}
        yield pair.source, pair.target, json.dumps(truth)


def _build(
    plan: TextPlan,
    sources: Mapping[str, Iterable[PairShard]],
    out: Path,
    overwrite: bool,
    tell: Callable[[int], None] | None,
    *,
    files: Mapping[str, ParallelFiles] | None = None,
    toy: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write all splits and the manifest; `files` know what they noted, `toy` is how it was made."""
    started = time.monotonic()
    filtering = plan.cleaner(plan.filters, raw=plan.valid_every is not None)
    keeping = plan.cleaner(None)
    with new_folder(out, overwrite) as folder:
        builder = SplitBuilder(
            folder, plan.languages, workers=plan.workers, truth=toy is not None, report=tell
        )
        splits: dict[str, dict[str, Any]] = {}
        for name, parts in sources.items():
            found = (files or {}).get(name)
            note = found.note if found is not None else None
            if name == "train":
                splits |= builder.build(name, parts, filtering, plan.valid_every, note)
            else:
                splits |= builder.build(name, parts, keeping, note=note)
            if found is not None:
                splits[name]["notes"] = found.noted
        for name, split in splits.items():
            if split["pairs_kept"] == 0:
                raise _nothing_left(name, split, plan)
        manifest = {
            "version": __version__,
            **plan.describe(),
            **({} if toy is None else {"toy": toy}),
            "splits": _in_order(splits),
            "files": builder.files,
            "seconds": round(time.monotonic() - started, 3),
        }
        manifests.write(folder, manifest)
    return manifest


def _nothing_left(name: str, split: Mapping[str, Any], plan: TextPlan) -> InputError:
    if name == "valid" and plan.valid_every:
        return InputError(
            f"`--valid-every {plan.valid_every}` leaves no pair for validation: training keeps "
            "fewer.",
            "Give a smaller number.",
        )
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in split["dropped"].items())
    return InputError(
        f"no pair is left in `{name}`: {split['pairs_read']:,} were read (dropped: {reasons}).",
        "Check the files, the languages and the filters.",
    )


def _in_order(splits: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Train first, then validation, then the tests."""
    first = [name for name in ("train", "valid") if name in splits]
    return {name: splits[name] for name in [*first, *(n for n in splits if n not in first)]}
