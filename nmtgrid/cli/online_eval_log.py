"""`nmtgrid online-eval --log`: the latency of another program's log, in both conventions."""

from __future__ import annotations

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
    tell_skipped(thesis)
    write_report(json, found.values())


def tell_skipped(found: Latency) -> None:
    """Tell people of sentences that have no latency."""
    if found.skipped:
        console.say(
            f"{found.skipped:,} of {found.sentences:,} sentences have an empty source or "
            "translation and count in no average."
        )
    if late := found.yaal_skipped - found.skipped:
        console.say(f"{late:,} sentences wrote nothing before all was read and count in no YAAL.")


def _row(found: Latency) -> list[float]:
    return [*(getattr(found, name) for name in METRICS), found.length_ratio]
