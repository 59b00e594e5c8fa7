"""From parallel text to a dataset directory: tokenised, filtered, with everything counted."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from nmtgrid import __version__
from nmtgrid.base.config import check
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.data import manifest as manifests
from nmtgrid.data.folders import new_folder
from nmtgrid.data.pairs import ParallelFiles
from nmtgrid.data.writing import SplitWriter
from nmtgrid.text.cleaning import REASONS, Cleaned, Cleaner, Filters, Row
from nmtgrid.text.files import Meter
from nmtgrid.text.moses import Moses
from nmtgrid.text.workers import chunks, map_ordered

CHUNK = 1000
TOY_LANGUAGES = ("qa", "qb")
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
        if self.workers < 1:
            found.append(f"`--workers` must be at least 1, but is {self.workers}.")
        return found

    @property
    def languages(self) -> tuple[str, str]:
        """(source, target)."""
        return self.source_lang, self.target_lang


Source = Callable[[Meter], Iterator[Row]]
"""Gives the pairs of a split; with each its truth as JSON, or nothing."""


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
    meter = Meter(path for found in files.values() for path in found.paths)
    sources = {name: _from_files(found) for name, found in files.items()}
    build = _Build(plan, out, overwrite, meter, report)
    return build.run(sources, {name: found.notes for name, found in files.items()})


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
    _check(plan, {"train": [""], "valid": [""]})
    if plan.tokenize != "moses":
        raise ConfigError("`--toy` needs `--tokenize moses`: its truth counts Moses' words.")
    from nmtgrid.data.toy import toy_splits

    splits = toy_splits(pairs, seed=seed, difficulty=difficulty)
    sources = {name: _from_toy(split) for name, split in splits.items()}
    build = _Build(plan, out, overwrite, Meter(), report)
    facts = {"toy": {"pairs": pairs, "seed": seed, "difficulty": difficulty}}
    return build.run(sources, {}, facts)


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


def _from_files(files: ParallelFiles) -> Source:
    return lambda meter: ((source, target, "") for source, target in files.read(meter))


def _from_toy(pairs: Iterable[Any]) -> Source:
    def read(_: Meter) -> Iterator[Row]:
        for pair in pairs:
            truth = {"reads": list(pair.reads), "links": [list(link) for link in pair.links]}
            yield pair.source, pair.target, json.dumps(truth)

    return read


class _Build:
    """One run: splits are read, cleaned and written one after the other."""

    def __init__(
        self, plan: TextPlan, out: Path, overwrite: bool, meter: Meter, report: Report | None
    ) -> None:
        self._plan = plan
        self._out = out
        self._overwrite = overwrite
        self._meter = meter
        self._report = report
        self._done = 0
        self._files: dict[str, dict[str, Any]] = {}

    def run(
        self,
        sources: Mapping[str, Source],
        notes: Mapping[str, Mapping[str, Counter[str]]],
        facts: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Build everything; return the manifest."""
        plan, started = self._plan, time.monotonic()
        truth = facts is not None and "toy" in facts
        with new_folder(self._out, self._overwrite) as folder:
            splits: dict[str, dict[str, Any]] = {}
            for name, source in sources.items():
                splits.update(self._split(folder, name, source, truth))
            for name, counts in notes.items():
                splits[name]["notes"] = {
                    file: {note: n for note, n in count.items() if n}
                    for file, count in counts.items()
                    if any(count.values())
                }
            for name, split in splits.items():
                if split["pairs_kept"] == 0:
                    raise InputError(
                        f"no pair is left in `{name}` (dropped: {split['dropped']}).",
                        "Check the files, the languages and the filters.",
                    )
            manifest = {
                "version": __version__,
                "text": {
                    "source_lang": plan.source_lang,
                    "target_lang": plan.target_lang,
                    "tokenize": plan.tokenize,
                    "lowercase": plan.lowercase,
                },
                "filters": {
                    "max_words": plan.filters.max_words,
                    "max_ratio": plan.filters.max_ratio,
                    "valid_every": plan.valid_every,
                },
                **(facts or {}),
                "splits": _in_order(splits),
                "files": self._files,
                "seconds": round(time.monotonic() - started, 3),
            }
            manifests.write(folder, manifest)
        return manifest

    def _split(self, folder: Path, name: str, source: Source, truth: bool) -> dict[str, Any]:
        """Write the split `name`, and `valid` too where it is cut out of train."""
        plan = self._plan
        every = plan.valid_every if name == "train" else None
        languages = plan.languages
        dropped: Counter[str] = Counter()
        read = 0
        with contextlib.ExitStack() as stack:
            writer = stack.enter_context(SplitWriter(folder, name, languages, truth=truth).open())
            cut = None
            if every is not None:
                cut = stack.enter_context(
                    SplitWriter(folder, "valid", languages, truth=truth).open()
                )
            kept = 0
            for part, cleaned in self._cleaned(name, source):
                rows = []
                for place, reason in enumerate(cleaned.reasons):
                    if reason:
                        dropped[reason] += 1
                    else:
                        kept += 1
                        rows.append((place, every is not None and kept % every == 0))
                _write(writer, part, cleaned, [p for p, is_cut in rows if not is_cut])
                if cut is not None:
                    _write(cut, part, cleaned, [p for p, is_cut in rows if is_cut])
                read += len(part)
        result = {name: _counts(read, writer.count, dropped)}
        self._files.update(writer.facts)
        if cut is not None:
            result[name]["moved_to_valid"] = cut.count
            result["valid"] = _counts(cut.count, cut.count, Counter())
            self._files.update(cut.facts)
        return result

    def _cleaned(self, name: str, source: Source) -> Iterator[tuple[list[Row], Cleaned]]:
        plan = self._plan
        source_moses, target_moses = (
            Moses(language, plan.tokenize == "moses", plan.lowercase)
            for language in plan.languages
        )
        cleaner = Cleaner(source_moses, target_moses, plan.filters if name == "train" else None)
        parts = chunks(source(self._meter), CHUNK)
        for part, cleaned in map_ordered(cleaner, parts, plan.workers):
            yield part, cleaned
            self._done += len(part)
            if self._report is not None:
                self._report(self._meter, self._done)


def _write(
    writer: SplitWriter, part: list[Row], cleaned: Cleaned, places: list[int]
) -> None:
    writer.write("text", 0, [cleaned.sources[place] for place in places])
    writer.write("text", 1, [cleaned.targets[place] for place in places])
    writer.write("raw", 0, [part[place][0] for place in places])
    writer.write("raw", 1, [part[place][1] for place in places])
    writer.write("truth", 0, [part[place][2] for place in places])


def _counts(read: int, kept: int, dropped: Counter[str]) -> dict[str, Any]:
    return {
        "pairs_read": read,
        "pairs_kept": kept,
        "dropped": {reason: dropped[reason] for reason in REASONS},
    }


def _in_order(splits: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Train first, then validation, then the tests."""
    first = [name for name in ("train", "valid") if name in splits]
    return {name: splits[name] for name in [*first, *(n for n in splits if n not in first)]}
