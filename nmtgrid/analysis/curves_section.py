"""Trainings as a section: their table, and a picture for each kind of curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nmtgrid.analysis.curve_panels import Against, panels
from nmtgrid.analysis.plotting.labels import wrapped
from nmtgrid.analysis.plotting.lines import MOST_LINES, Map, Panel, draw
from nmtgrid.analysis.section import Cell, Picture, Section, Table
from nmtgrid.analysis.training_curves import Run, curves, summary
from nmtgrid.base.errors import ConfigError

_TEXT = """How the models were trained. Losses are in nats per target token, without label \
smoothing; the best validation is the one of the lowest loss. Scores of validation are those of \
greedy search."""
_CAPTIONS = {
    "loss": "Losses in training (faint) and on validation.",
    "bleu": "Greedy BLEU on validation.",
    "cider": "Greedy CIDEr-D on validation, times 100.",
    "learning-rate": "Learning rate.",
    "gradient-norm": "Norm of the gradient of all weights, before clipping.",
    "gradient-ratio": "Gradient at the first over that at the last encoder layer.",
}


def section(runs: Sequence[Run], against: Against = "minutes") -> Section:
    """Return the table and the diagrams of all runs."""
    pictures = [_picture(name, panel) for name, panel in panels(runs, against).items()]
    values = {"models": [{**summary(run), **curves(run)} for run in runs]}
    return Section("curves", "How the models were trained", _TEXT, [_table(runs)], pictures, values)


def check_drawable(count: int) -> None:
    """Raise ConfigError for more runs than lines can be told apart."""
    if count > MOST_LINES:
        raise ConfigError(
            f"More than {MOST_LINES} lines in one diagram cannot be told apart, but {count} "
            "models are given.",
            "Draw fewer at a time.",
        )


def _picture(name: str, panel: Panel | Map) -> Picture:
    def draw_one(path: Path) -> None:
        draw([panel], path)

    return Picture(name, _CAPTIONS.get(name, f"{panel.title}."), draw_one)


def _table(runs: Sequence[Run]) -> Table:
    rows = [summary(run) for run in runs]
    columns: dict[str, Callable[[dict[str, Any]], Cell]] = {
        "model": lambda row: wrapped(row["name"], 14),
        "updates": lambda row: row["updates"],
        "min": lambda row: row["minutes"],
        "tok/s": lambda row: _told(row["tokens_per_second"], ",.0f"),
        "loss": lambda row: _told(row["valid_loss"], ".4f"),
        "ppl": lambda row: row["valid_perplexity"],
        "BLEU": lambda row: row["valid_bleu"],
    }
    if any(row["valid_cider"] is not None for row in rows):
        columns["CIDEr-D"] = lambda row: row["valid_cider"]
    if any(row["gradient_ratio"] is not None for row in rows):
        columns["h1/hN"] = lambda row: _told(row["gradient_ratio"], ".2g")
    quality = "BLEU and CIDEr-D (x 100)" if "CIDEr-D" in columns else "BLEU"
    return Table(
        "Trainings: target tokens per second; loss in nats per token, perplexity and greedy\n"
        f"{quality} at the best validation"
        + ("; last ratio of gradient norms" if "h1/hN" in columns else ""),
        list(columns),
        [[tell(row) for tell in columns.values()] for row in rows],
    )


def _told(value: float | None, form: str) -> Cell:
    return None if value is None else format(value, form)
