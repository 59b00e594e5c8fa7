"""From parallel text to a dataset directory: tokenised, filtered, with everything counted."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from nmtgrid import __version__
from nmtgrid.base.config import check, to_json
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.base.io.text import Meter
from nmtgrid.base.io.workers import chunks, fault_of_workers
from nmtgrid.data import manifest as manifests
from nmtgrid.data.directory import new_folder
from nmtgrid.data.pairs import ParallelFiles
from nmtgrid.data.splitting import SplitBuilder
from nmtgrid.data.toy.toy import toy_splits
from nmtgrid.data.toy.toy_pair import ToyPair
from nmtgrid.text.cleaning import Cleaner, Filters, Part, Row, as_parts
from nmtgrid.text.moses import Moses

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
        found += fault_of_workers(self.workers)
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
        name: as_parts(chunks(_toy_rows(split), _TOY_CHUNK)) for name, split in splits.items()
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


def _toy_rows(pairs: Iterable[ToyPair]) -> Iterator[Row]:
    for pair in pairs:
        truth = {"reads": list(pair.reads), "links": [list(link) for link in pair.links]}
        yield pair.source, pair.target, json.dumps(truth)


def _build(
    plan: TextPlan,
    sources: Mapping[str, Iterable[Part]],
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
