"""`nmtgrid adaptive-tune --results`: tunings done before in one table and picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmtgrid.analysis.exit_curves import draw_exit_curves
from nmtgrid.analysis.exit_results import Tuned, best_of, curves, read_tuned
from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.files import split_label
from nmtgrid.cli.options import write_report


def draw_results(named: Sequence[str], out: Path | None, json: Path | None) -> None:
    """Show and draw tunings, those of one name pooled: the best of each budget."""
    found = [read_tuned(path, label) for label, path in map(split_label, named)]
    splits = sorted({f"{one.split} ({one.sentences:,} sentences)" for one in found})
    if len(splits) > 1:
        raise ConfigError(
            f"These tunings report different splits: {', '.join(splits)}.",
            "Compare what was measured on the same sentences.",
        )
    rows = table(found)
    console.table(
        f"{splits[0]}; BLEU tokenised (percent); average exit in blocks per token; MFLOPs of the "
        "decoder per token;\ntime in percent of the full stack's, which was decoded in turn",
        ["", "", "BLEU", "exit", "MFLOPs", "time"],
        [[row["system"], row["label"], row["bleu"], row["average_exit"],
          row["flops_per_token"] / 1e6, 100 * row["share"]] for row in rows],
    )  # fmt: skip
    if out is not None:
        draw_exit_curves(
            curves(found, seconds=False),
            out,
            title=f"Early exit, {found[0].split}: quality against cost",
            x_labels=[
                "average exit (blocks per token)",
                "decoder's operations (MFLOPs per token)",
                "time (percent of the full stack's)",
            ],
            y_label="BLEU, tokenised (percent)",
        )
        console.say(f"Drawn: {out}")
    write_report(json, {"split": found[0].split, "rows": rows})


def table(found: Sequence[Tuned]) -> list[dict[str, Any]]:
    """Return a row for each point that is drawn."""
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
            **{
                key: value
                for key, value in dataclasses.asdict(point).items()
                if key in ("bleu", "average_exit", "seconds", "share")
            },
            "flops_per_token": point.flops,
        }
        for name, point in rows
    ]
