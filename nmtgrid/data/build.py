"""From parallel text to a dataset directory: tokenised and filtered, with all counts.

`nmtgrid preprocess` calls `preprocess_files` or `preprocess_toy`; `bpe learn` (subwords.py) then
completes the directory.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from nmtgrid import __version__
from nmtgrid.base.config import check, to_json
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.base.io.text import Meter, empty_file_error, find_text, is_plain, open_text, read_lines
from nmtgrid.base.io.workers import chunks, map_ordered, worker_faults
from nmtgrid.base.spans import plural
from nmtgrid.data import directory
from nmtgrid.data.toy.corpus import toy_splits
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
from nmtgrid.text.moses import TURKIC, Moses
from nmtgrid.text.scripts import is_unsegmented
from nmtgrid.text.shards import LineShard, ShardReader

SEGMENT_FIRST = (
    "The text in {languages} has no spaces between words, so that a sentence counts as one word. "
    "Use SentencePiece, which cuts sentences into units: `nmtgrid preprocess --tokenize none`, "
    "then `nmtgrid bpe learn DATA --method sentencepiece`. Or segment the text into words first."
)
SACREBLEU = "sacrebleu:"
"""The beginning of a prefix that names one of sacreBLEU's test sets."""
_CHUNK = 1000

# Called with the progress of reading and the number of pairs done.
Report = Callable[[Meter, int], None]


@dataclasses.dataclass(frozen=True)
class TextPlan:
    """The text processing of `preprocess`."""

    source_lang: str
    target_lang: str
    tokenize: Literal["moses", "none"] = "moses"
    lowercase: bool = False
    filters: Filters = dataclasses.field(default_factory=Filters)
    valid_every: int | None = None
    """n: every n-th pair of the filtered training text goes to validation instead."""
    workers: int = 1

    def faults(self) -> list[str]:
        """Return what is wrong with the settings."""
        faults = []
        for option, language in (("source", self.source_lang), ("target", self.target_lang)):
            if not directory.SPLIT_NAME.fullmatch(language):
                faults.append(f"`--{option}-lang` must be a suffix such as `de`, not `{language}`.")
        if self.source_lang == self.target_lang:
            faults.append(f"`--source-lang` and `--target-lang` are both `{self.source_lang}`.")
        if self.valid_every is not None and self.valid_every < 2:
            faults.append(f"`--valid-every` must be at least 2, but is {self.valid_every}.")
        return faults + worker_faults(self.workers)

    @property
    def turkic_case(self) -> bool:
        """Whether lower-casing maps I to ı and İ to i in one of the languages."""
        return self.lowercase and not TURKIC.isdisjoint(self.languages)

    @property
    def languages(self) -> tuple[str, str]:
        """(source, target)."""
        return self.source_lang, self.target_lang


class _ParallelFiles:
    """Pairs of parallel files, read one pair after the other.

    `notes` counts corrections and anomalies by file.
    """

    def __init__(self, prefixes: Sequence[str], languages: tuple[str, str], xml: bool) -> None:
        """Raise InputError naming a missing file."""
        self.pairs: list[tuple[Path, Path]] = []
        self.test_sets = [p.removeprefix(SACREBLEU) for p in prefixes if p.startswith(SACREBLEU)]
        # Only IWSLT's files are XML, not those of sacreBLEU.
        self._xml: set[Path] = set()
        for prefix in prefixes:
            if prefix.startswith(SACREBLEU):
                from nmtgrid.metrics.sacrebleu_sets import fetch_test_set

                self.pairs.append(fetch_test_set(prefix.removeprefix(SACREBLEU), languages))
                continue
            endings = ENDINGS if xml else ("",)
            source, target = (find_text(prefix, language, endings) for language in languages)
            self.pairs.append((source, target))
            self._xml |= {source, target} if xml else set()
        self._notes: dict[str, Counter[str]] = {}

    @property
    def notes(self) -> dict[str, dict[str, int]]:
        """The notes that are not zero, by file name."""
        return {file: dict(+counts) for file, counts in self._notes.items() if +counts}

    def add_notes(self, shard: PairShard, cleaned: CleanedShard) -> None:
        for lines, counts in zip((shard.source, shard.target), cleaned.notes, strict=True):
            if lines.path:
                self._notes.setdefault(Path(lines.path).name, Counter()).update(counts)

    def shards(self, meter: Meter) -> Iterator[PairShard]:
        """Yield the pairs in shards. Uncompressed text is decoded by the workers.

        Raises InputError when two files differ in their number of lines, and the errors of
        `read_lines`.
        """
        for source, target in self.pairs:
            # Compressed files and XML cannot be handed to workers as bytes: lines are read here.
            if source in self._xml or not (is_plain(source) and is_plain(target)):
                yield from to_shards(chunks(self._read_pairs(source, target, meter), _CHUNK))
            else:
                yield from self._read_shards(source, target, meter)

    def _read_shards(self, source: Path, target: Path, meter: Meter) -> Iterator[PairShard]:
        read = 0
        with open_text(source, meter) as source_file, open_text(target, meter) as target_file:
            sources, targets = ShardReader(source_file, source), ShardReader(target_file, target)
            while True:
                raw_source, count = sources.some(read + 1)
                raw_target, target_count = targets.exactly(count, read + 1)
                # An empty file gets its own message instead of one about unequal lengths.
                if not read and not (count and target_count):
                    raise empty_file_error(target if count else source)
                # At the end of the source, all remaining target lines are surplus.
                surplus = 0 if count else targets.rest()
                if target_count < count or surplus:
                    source_total = read + count + sources.rest()
                    totals = source_total, read + target_count + surplus
                    raise self._unequal_error((source, target), totals)
                if not count:
                    return
                yield PairShard(
                    LineShard(raw_source, str(source), read + 1),
                    LineShard(raw_target, str(target), read + 1),
                )
                read += count

    def _read_pairs(self, source: Path, target: Path, meter: Meter) -> Iterator[RawPair]:
        pairs = zip_longest(self._lines(source, meter), self._lines(target, meter))
        for read, (source_line, target_line) in enumerate(pairs):
            if source_line is None or target_line is None:
                longer = read + 1 + sum(1 for _ in pairs)
                totals = (longer, read) if target_line is None else (read, longer)
                raise self._unequal_error((source, target), totals)
            yield source_line, target_line, ""

    def _lines(self, path: Path, meter: Meter) -> Iterator[str]:
        lines = read_lines(path, self._notes.setdefault(path.name, Counter()), meter=meter)
        return read_xml(lines, str(path)) if path in self._xml else lines

    def _unequal_error(self, paths: tuple[Path, Path], totals: tuple[int, int]) -> InputError:
        longer = totals[1] > totals[0]
        more, fewer = max(totals), min(totals)
        return InputError(
            f"this file has {plural(more, 'line')} of text, but {paths[not longer]} has {fewer:,}.",
            "The two files must be parallel: find the first misaligned line and correct it.",
            path=paths[longer],
            # Numbers of text lines in XML are not line numbers of the file.
            line=0 if paths[longer] in self._xml else fewer + 1,
        )


def preprocess_files(
    plan: TextPlan,
    prefixes: Mapping[str, list[str]],
    out: Path,
    *,
    xml: bool = False,
    overwrite: bool = False,
    report: Report = lambda meter, pairs: None,
) -> dict[str, Any]:
    """Build a dataset in `out` from the files with these prefixes; return the manifest.

    `prefixes` maps `train`, `valid` and the names of test sets to prefixes, whose files are
    concatenated. Raises ConfigError, InputError, DataError (existing folder), StorageError.
    """
    _check(plan, prefixes)
    files = {name: _ParallelFiles(split, plan.languages, xml) for name, split in prefixes.items()}
    paths = [path for split in files.values() for pair in split.pairs for path in pair]
    # `--overwrite` would delete the text with the old folder.
    folder = Path(os.path.realpath(out))
    inside = [path for path in paths if folder in Path(os.path.realpath(path)).parents]
    if inside:
        raise ConfigError(
            f"{inside[0]} is in the folder {out}, which would be replaced.",
            "Choose another `--out`, or move the text out of it.",
        )
    meter = Meter(paths)
    sources = {name: split.shards(meter) for name, split in files.items()}
    with directory.new_folder(out, overwrite) as folder:
        return _SplitBuilder(folder, plan, report, meter, files=files).build(sources)


def preprocess_toy(
    plan: TextPlan,
    pairs: int,
    out: Path,
    *,
    seed: int = 1,
    difficulty: int = 1,
    overwrite: bool = False,
    report: Report = lambda meter, pairs: None,
) -> dict[str, Any]:
    """Build a dataset in `out` from the toy corpus with `pairs` training pairs.

    `truth/<split>.jsonl` contains the known `reads` and `links` of each kept pair, counted in
    words. Returns the manifest.
    """
    if plan.valid_every:
        raise ConfigError("`--toy` generates its own validation text: leave out `--valid-every`.")
    # The toy corpus has no files; only the names of its splits matter here.
    _check(plan, {"train": [""], "valid": [""]})
    if plan.tokenize != "moses":
        raise ConfigError(
            "`--toy` needs `--tokenize moses`, because its alignments count Moses' words."
        )
    sources = {}
    for name, split in toy_splits(pairs, seed=seed, difficulty=difficulty).items():
        rows = (
            (pair.source, pair.target, json.dumps({"reads": pair.reads, "links": pair.links}))
            for pair in split
        )
        sources[name] = to_shards(chunks(rows, _CHUNK))
    toy = {"pairs": pairs, "seed": seed, "difficulty": difficulty}
    with directory.new_folder(out, overwrite) as folder:
        return _SplitBuilder(folder, plan, report, Meter(), toy=toy).build(sources)


def _check(plan: TextPlan, prefixes: Mapping[str, list[str]]) -> None:
    check(plan)
    faults = [
        f"A split cannot be named `{name}`; use letters, digits, `.`, `_` and `-`."
        for name in prefixes
        if not directory.SPLIT_NAME.fullmatch(name)
    ]
    if any(prefix.startswith(SACREBLEU) for prefix in prefixes.get("train", ())):
        faults.append("`--train` cannot be a test set of sacreBLEU: give your own training text.")
    if not prefixes.get("train"):
        faults.append("There is no training text: give `--train`.")
    if plan.valid_every and "valid" in prefixes:
        faults.append("Give either validation files or `--valid-every`, not both.")
    # `test` in `simple.en` and `test.simple` in `en` would be one file.
    names = [*prefixes, *(["valid"] if plan.valid_every else [])]
    files = [f"{name}.{language}" for name in names for language in plan.languages]
    twice = sorted({file for file in files if files.count(file) > 1})
    if twice and len(set(names)) == len(names):
        faults.append(
            f"Two texts would be stored as `{twice[0]}`: give the split or the language another "
            "name."
        )
    if faults:
        raise ConfigError(faults)


@dataclasses.dataclass
class _SplitBuilder:
    """Writes splits and the manifest into a folder."""

    folder: Path
    plan: TextPlan
    report: Report
    meter: Meter
    files: Mapping[str, _ParallelFiles] = dataclasses.field(default_factory=dict)
    """The input files of each split, with notes on them."""
    toy: Mapping[str, Any] | None = None
    """The manifest's description of a toy corpus, whose known truth is written too."""
    done: int = 0
    facts: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """Sizes and hashes of the files written."""

    def build(self, sources: Mapping[str, Iterable[PairShard]]) -> dict[str, Any]:
        """Write all splits; return the manifest."""
        started, plan = time.monotonic(), self.plan
        splits: dict[str, dict[str, Any]] = {}
        for name, shards in sources.items():
            splits |= self.write(name, shards)
            if name in self.files:
                # Notes are complete only after all shards of the split have been processed.
                splits[name]["notes"] = self.files[name].notes
                if test_sets := self.files[name].test_sets:
                    splits[name]["test_sets"] = test_sets
        for name, split in splits.items():
            if split["pairs_kept"] == 0:
                raise _nothing_left_error(name, split, plan)
        names = ("source_lang", "target_lang", "tokenize", "lowercase")
        # Left out if it has no effect: the facts are then the same as in older versions.
        turkic_case = {"turkic_case": True} if plan.turkic_case else {}
        manifest = {
            "version": __version__,
            "text": {name: getattr(plan, name) for name in names} | turkic_case,
            "filters": {**to_json(plan.filters), "valid_every": plan.valid_every},
            **({} if self.toy is None else {"toy": self.toy}),
            "splits": directory.in_order(splits),
            "files": self.facts,
            "seconds": round(time.monotonic() - started, 3),
        }
        directory.write(self.folder, manifest)
        return manifest

    def write(self, name: str, shards: Iterable[PairShard]) -> dict[str, dict[str, Any]]:
        """Write the split `name`; return its counts.

        Every `valid_every`-th kept pair of train goes to the split `valid` instead; the counts of
        `valid` are then returned too.
        """
        plan, is_train = self.plan, name == "train"
        every = plan.valid_every if is_train else None
        # Raw text is kept for validation and test, which are scored against it.
        source, target = (
            Moses(lang, plan.tokenize == "moses", plan.lowercase, plan.turkic_case)
            for lang in plan.languages
        )
        keeps_raw = not is_train or bool(every)
        cleaner = Cleaner(source, target, plan.filters if is_train else None, keeps_raw)
        dropped: Counter[str] = Counter()
        scripts: tuple[Counter[str], Counter[str]] = Counter(), Counter()
        pairs_read = before = 0
        columns = self._columns(name)
        moved_columns = self._columns("valid") if every else {}
        names = [*columns.values(), *moved_columns.values()]
        with directory.open_line_files(self.folder, names) as files:
            for shard, cleaned in map_ordered(cleaner, shards, plan.workers):
                if name in self.files:
                    self.files[name].add_notes(shard, cleaned)
                dropped.update(cleaned.dropped)
                for script, more in zip(scripts, cleaned.scripts, strict=True):
                    script.update(more)
                pairs_read += cleaned.pairs_read
                blocks = [*cleaned.text, *cleaned.raw, cleaned.truth]
                if every:
                    cut = [_cut(block, before, every) for block in blocks]
                    blocks = [rest for rest, _ in cut]
                    for column, file in moved_columns.items():
                        files[file].extend(cut[column][1])
                for column, file in columns.items():
                    files[file].extend(blocks[column])
                before += cleaned.pairs_kept
                self.done += cleaned.pairs_read
                self.report(self.meter, self.done)
        self.facts.update({file: lines.facts for file, lines in files.items()})
        pairs_kept = files[columns[0]].count
        split = directory.split_counts(pairs_read, pairs_kept, dropped, REASONS)
        counts = {name: split}
        sides = zip(plan.languages, scripts, strict=True)
        if unsegmented := [lang for lang, counted in sides if is_unsegmented(counted)]:
            split["unsegmented"] = unsegmented
        if every:
            moved = files[moved_columns[0]].count
            counts[name]["moved_to_valid"] = moved
            # These pairs passed the filters of train, whose counts include the dropped pairs.
            counts["valid"] = directory.split_counts(moved, moved, Counter(), REASONS)
        return counts

    def _columns(self, name: str) -> dict[int, str]:
        """Return the files of text (0, 1: source, target), raw text (2, 3) and truth (4)."""
        kinds = ["text"] if name == "train" else ["text", "raw"]
        files = [f"{kind}/{name}.{lang}" for kind in kinds for lang in self.plan.languages]
        columns = dict(enumerate(files))
        return columns if self.toy is None else columns | {4: f"truth/{name}.jsonl"}


def _cut(lines: bytes, before: int, every: int) -> tuple[bytes, bytes]:
    """Return (remaining lines, every `every`-th line); `before` lines precede these."""
    # Cut at line feeds only: a raw line may contain carriage returns, at which `splitlines` cuts.
    rest = [line + b"\n" for line in lines.split(b"\n")[:-1]]
    first = every - 1 - before % every
    # Counted over all kept pairs, so that the split does not depend on shards or workers.
    moved = rest[first::every]
    del rest[first::every]
    return b"".join(rest), b"".join(moved)


def _nothing_left_error(name: str, split: Mapping[str, Any], plan: TextPlan) -> InputError:
    if name == "valid" and plan.valid_every:
        return InputError(
            f"`--valid-every {plan.valid_every}` leaves no pair for validation, because training "
            "keeps fewer pairs than that.",
            "Give a smaller number.",
        )
    dropped = split["dropped"].items()
    reasons = ", ".join(f"{reason.replace('_', ' ')} {n:,}" for reason, n in dropped if n)
    return InputError(
        f"no pair is left in `{name}`: {split['pairs_read']:,} were read (dropped: {reasons}).",
        SEGMENT_FIRST.format(languages=" and ".join(split["unsegmented"]))
        if "unsegmented" in split
        else "Check the files, the languages and the filters.",
    )
