"""The diagrams of training runs: losses, quality, learning rate, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.plotting.lines import Line, Map, Panel
from nmtgrid.analysis.training_curves import Row, Run, stages

Against = Literal["minutes", "updates", "tokens"]
_AXES = {
    "minutes": "minutes of the run",
    "updates": "updates",
    "tokens": "target tokens (millions)",
}
_QUALITIES = {
    "bleu": ("Greedy BLEU on validation", "BLEU (percent)"),
    "cider": ("Greedy CIDEr-D on validation", "CIDEr-D (x 100)"),
}
_POINTS = 160
"""Columns of a map, and points of a smoothed line: more could not be told apart."""
_VANISHED = 1e-12
"""What maps do not tell from zero."""


def panels(runs: Sequence[Run], against: Against) -> dict[str, Panel | Map]:
    """Return the diagrams that the runs have points for, by short name.

    Losses and quality are drawn `against` that, the rest against updates.
    """
    found: dict[str, Panel | Map] = {}
    if any(run.training or run.validation for run in runs):
        found["loss"] = _losses(runs, against)
    for score, (title, axis) in _QUALITIES.items():
        if any(row[score] is not None for run in runs for row in run.validation):
            found[score] = Panel(
                title, _AXES[against], axis,
                [
                    Line(run.name, *_points(run, run.validation, against, score), style, mark=True)
                    for style, run in enumerate(runs)
                ],
                least=0.0,
            )  # fmt: skip
    if any(run.training for run in runs):
        found["learning-rate"] = Panel(
            "Learning rate",
            _AXES["updates"],
            "learning rate",
            [
                Line(run.name, *_points(run, run.training, "updates", "learning_rate"), style)
                for style, run in enumerate(runs)
            ],
            least=0.0,
        )
        found["gradient-norm"] = Panel(
            "Gradient of all weights", _AXES["updates"], "norm, before clipping",
            _smooth_lines([(run, run.training) for run in runs], "gradient_norm"), logarithmic=True,
        )  # fmt: skip
    if any(row["gradient_ratio"] for run in runs for row in run.gradients):
        found["gradient-ratio"] = Panel(
            "Gradient at the first over that at the last encoder layer", _AXES["updates"],
            r"norm at $h_1$ / norm at $h_N$",
            _smooth_lines([(run, run.gradients) for run in runs], "gradient_ratio"),
            logarithmic=True, level=1.0,
        )  # fmt: skip
    found |= _maps([run for run in runs if run.gradients])
    return found


def _losses(runs: Sequence[Run], against: Against) -> Panel:
    """Return training losses, faint, behind those of validation; the steep beginning is cut off.

    Neither has label smoothing; that of training has dropout.
    """
    lines: list[Line] = []
    tops: list[float] = []
    for style, run in enumerate(runs):
        x, y = _points(run, run.training, against, "nll")
        validation = _points(run, run.validation, against, "nll")
        if run.validation:
            lines.append(Line(run.name, *validation, style, mark=True))
        lines.append(Line(run.name, x, y, style, faint=bool(run.validation)))
        late = max((*x, *validation[0]), default=0.0) * 0.06
        tops += [loss for at, loss in zip(x, y, strict=True) if at >= late and loss == loss][:1]
        tops += [loss for loss in validation[1] if loss == loss][:1]
    has_both = any(run.training for run in runs) and any(run.validation for run in runs)
    return Panel(
        "Loss: validation (points) and training (pale)" if has_both else "Loss",
        _AXES[against], "loss (nats per target token)", lines,
        most=1.04 * max(tops) if tops else None, exponential="perplexity",
    )  # fmt: skip


def _smooth_lines(held: Sequence[tuple[Run, Sequence[Row]]], name: str) -> list[Line]:
    """Return a line over the updates for each run; many points go behind their running mean."""
    lines: list[Line] = []
    for style, (run, rows) in enumerate(held):
        points = zip(*_points(run, rows, "updates", name), strict=True)
        kept = [(at, value) for at, value in points if value > 0]
        if not kept:
            continue
        x, y = [at for at, _ in kept], [value for _, value in kept]
        if len(kept) > 30:
            lines.append(Line(run.name, x, y, style, faint=True))
            y = _smoothed(y)
        lines.append(Line(run.name, x, y, style))
    return lines


def _smoothed(values: Sequence[float]) -> list[float]:
    """Return geometric means over windows around each value, a twentieth of all wide."""
    logs = numpy.log(numpy.asarray(values))
    reach = max(2, len(values) // 40)
    sums = numpy.concatenate([[0.0], numpy.cumsum(logs)])
    places = numpy.arange(len(values))
    first, last = numpy.maximum(places - reach, 0), numpy.minimum(places + reach + 1, len(values))
    means = (sums[last] - sums[first]) / (last - first)
    return [float(value) for value in numpy.exp(means)]


def _maps(runs: Sequence[Run]) -> dict[str, Map]:
    """Return a map of the norms at all stages for each run, all with one scale."""
    grids = [_grid(run) for run in runs]
    held = [v for _, values in grids for v in values[values > _VANISHED].flatten()]
    limits = (min(held), max(held)) if held else (0.1, 1.0)
    if limits[1] < 2 * limits[0]:
        limits = (limits[0] / 1.5, limits[1] * 1.5)
    return {
        f"layers-{place}": Map(
            f"Gradient at each layer: {run.name}", _AXES["updates"], "norm, loss per token",
            x, stages(run), values, limits,
        )
        for place, (run, (x, values)) in enumerate(zip(runs, grids, strict=True), 1)
    }  # fmt: skip


def _grid(run: Run) -> tuple[list[float], NDArray[numpy.float64]]:
    """Return the updates and the norms [stages, updates], neighbours averaged where many."""
    names = stages(run)
    rows = [[row["gradients"].get(name, math.nan) for row in run.gradients] for name in names]
    values = numpy.asarray(rows, dtype=numpy.float64)
    values[values <= _VANISHED] = 0.0
    x = [float(row["update"]) for row in run.gradients]
    if len(x) <= _POINTS:
        return x, values
    cuts = numpy.linspace(0, len(x), _POINTS + 1).astype(int)
    parts = [values[:, first:last].mean(1) for first, last in pairwise(cuts)]
    return [x[last - 1] for last in cuts[1:]], numpy.stack(parts, axis=1)


def _points(
    run: Run, rows: Sequence[Row], against: Against, name: str
) -> tuple[list[float], list[float]]:
    """Return x and y of the rows that have the number `name`."""
    held = [row for row in rows if row[name] is not None]
    place: dict[str, Callable[[], list[float]]] = {
        "minutes": lambda: [row["minutes"] for row in held],
        "updates": lambda: [float(row["update"]) for row in held],
        "tokens": lambda: [t / 1e6 for t in run.tokens_at([row["update"] for row in held])],
    }
    return place[against](), [row[name] for row in held]
