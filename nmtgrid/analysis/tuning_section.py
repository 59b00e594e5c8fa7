"""Tunings of early exit as a section: BLEU against average exit, operations and time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmtgrid.analysis.exit_results import Tuned, best_of, check_alike, curves
from nmtgrid.analysis.section import Picture, Section, Table
from nmtgrid.analysis.tuning import draw_exit_curves

_TEXT = """Depth-adaptive decoding: tokens leave the decoder behind different blocks. BLEU is \
tokenised, in percent, on {split}; the average exit is in blocks per token, operations are those \
of the decoder in MFLOPs per token, and time is a share of the full stack's, which was decoded in \
turn with it. Tunings of one name are pooled: the best of each budget where it was tuned."""


def section(found: Sequence[Tuned]) -> Section:
    """Return the points of all tunings in one table and picture.

    Raises ConfigError unless they report the same sentences and were measured alike.
    """
    check_alike(found)
    first = next((one for one in found if one.search), found[0])
    how = f", {first.search}" if first.search else ""
    split = f"{first.split} ({first.sentences:,} sentences){how}"
    rows = _rows(found)

    def draw(path: Path) -> None:
        draw_exit_curves(
            curves(found, seconds=False),
            path,
            title=f"Early exit, {first.split}{how}: quality against cost",
            x_labels=[
                "average exit (blocks per token)",
                "decoder's operations (MFLOPs per token)",
                "time (percent of the full stack's)",
            ],
            y_label="BLEU, tokenised (percent)",
        )

    table = Table(
        f"{split}; BLEU tokenised (percent); average exit in blocks per token; MFLOPs of the "
        "decoder per token;\ntime in percent of the full stack's, which was decoded in turn",
        ["", "", "BLEU", "exit", "MFLOPs", "time"],
        [
            [row["system"], row["label"], row["bleu"], row["average_exit"],
             _mega(row["flops_per_token"]), 100 * row["share"]]
            for row in rows
        ],
    )  # fmt: skip
    return Section(
        "depth",
        "Early exit: quality against cost",
        _TEXT.format(split=split),
        [table],
        [Picture("depth", "BLEU against average exit, operations and time.", draw)],
        {"split": found[0].split, "rows": rows},
    )


def _rows(found: Sequence[Tuned]) -> list[dict[str, Any]]:
    """Return a row for each point that is drawn; None stands for what is not known of it."""
    rows = []
    for name in dict.fromkeys(one.name for one in found):
        own = [point for one in found if one.name == name for point in one.groups["adaptive"]]
        rows += [(name, point) for point in best_of(own)]
    for kind in ("fixed", "uniform", "baseline"):
        points = next((one.groups[kind] for one in found if one.groups[kind]), [])
        rows += [(kind, point) for point in points]
    return [
        {
            "system": name,
            "label": point.label,
            "bleu": point.bleu,
            "average_exit": _known(point.average_exit),
            "seconds": point.seconds,
            "share": point.share,
            "flops_per_token": _known(point.flops),
        }
        for name, point in rows
    ]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _mega(value: float | None) -> float | None:
    return None if value is None else value / 1e6
