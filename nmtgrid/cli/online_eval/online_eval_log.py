"""`nmtgrid online-eval --log`: the latency of another program's log, in both conventions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from nmtgrid.base import console
from nmtgrid.base.errors import InputError
from nmtgrid.cli.options import write_report
from nmtgrid.metrics.latency import METRICS, Latency
from nmtgrid.online.simuleval import read_log, score

_NAMES = {"max_cw": "mCW"}


def score_log(path: Path, json: Path | None) -> None:
    """Show a log's latency in words, and write it. Raises InputError for an empty log."""
    instances = read_log(path)
    if not instances:
        raise InputError("there is no sentence in it.", path=path)
    found = score(instances)
    thesis = found.thesis
    console.table(
        f"{path}: {thesis.sentences:,} sentences; latency in source words (AP: share of the "
        "source).\nthesis: |y| is the hypothesis' length; SimulEval: the reference's in AP and AL",
        ["convention", *(_NAMES.get(name, name.upper()) for name in METRICS), "ratio"],
        [["thesis", *_row(thesis)], ["SimulEval", *_row(found.simuleval)]],
    )
    tell_skipped({"": thesis})
    write_report(json, found.values())


def tell_skipped(found: Mapping[str, Latency]) -> None:
    """Tell people of sentences that have no latency; of each title where they are not as many.

    Of several, those without any YAAL are not told of: a table shows it.
    """
    skipped = {title: one.skipped for title, one in found.items()}
    late = {
        title: one.yaal_skipped - one.skipped
        for title, one in found.items()
        if len(found) == 1 or not math.isnan(one.yaal)
    }
    total = max(one.sentences for one in found.values())
    if text := _counted(skipped):
        console.say(
            f"In {text} of {total:,} sentences source or translation is empty: no average counts "
            "them."
        )
    if text := _counted(late):
        console.say(
            f"In {text} of {total:,} sentences nothing was written before all was read: no YAAL "
            "counts them."
        )


def _counted(counts: Mapping[str, int]) -> str:
    """Return the numbers above 0, with the titles that have each where they are not all alike."""
    titles: dict[int, list[str]] = {}
    for title, count in counts.items():
        titles.setdefault(count, []).append(title)
    shown = {count: f"{count:,}" for count in titles if count}
    if len(titles) > 1:
        shown = {count: f"{text} ({', '.join(titles[count])})" for count, text in shown.items()}
    return ", ".join(shown.values())


def _row(found: Latency) -> list[float]:
    return [*(getattr(found, name) for name in METRICS), found.length_ratio]
