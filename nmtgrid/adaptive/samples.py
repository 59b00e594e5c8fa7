"""The sentences that thresholds are tuned on, and are judged by."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from nmtgrid.base.errors import DataError
from nmtgrid.data.dataset import Split
from nmtgrid.text.pipeline import Pipeline


@dataclasses.dataclass(frozen=True)
class Sample:
    """A sentence: its line (from 1), source and target as ids, and the tokenised reference."""

    line: int
    source: list[int]
    target: list[int]
    reference: str


def read_samples(
    pipeline: Pipeline,
    split: Split,
    count: int | None = None,
    longest: int = 512,
    warn: Callable[[str], None] = lambda text: None,
) -> list[Sample]:
    """Return the first `count` sentences of a split (None: all).

    Sources are cut after `longest` units, and `warn` is told so. Raises DataError for a split that
    has no references.
    """
    found: list[Sample] = []
    cut: list[int] = []
    columns = zip(split.raw_source(), split.tokenized_target(), strict=True)
    for line, (source, reference) in enumerate(columns, start=1):
        if count is not None and line > count:
            break
        ids = pipeline.encode_source(source)
        if len(ids) > longest:
            cut.append(line)
        target = pipeline.target.encode_words(reference.split())
        found.append(Sample(line, ids[:longest], target, reference))
    if cut:
        shown = ", ".join(map(str, cut[:10])) + (", ..." if len(cut) > 10 else "")
        warn(f"long-line: longer than {longest:,} source units and cut: line {shown}.")
    if not any(one.source and one.reference.strip() for one in found):
        raise DataError(
            f"The split `{split.name}` has no sentence with a reference to compare with.",
            "Thresholds are tuned on a split with translations on its target side.",
        )
    return found
