"""`nmtgrid adaptive-tune --results`: tunings done before in one table and picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nmtgrid.analysis.exit_results import read_tuned
from nmtgrid.analysis.tuning_section import section
from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.analyze.show import check_out, show


def draw_results(named: Sequence[str], out: Path | None, json: Path | None) -> None:
    """Show and draw tunings, those of one name pooled: the best of each budget."""
    pairs = [split_label(text) for text in named]
    check_out(out, json, [path for _, path in pairs])
    found = [read_tuned(path, label) for label, path in pairs]
    show([section(found)], out, "png", json)
