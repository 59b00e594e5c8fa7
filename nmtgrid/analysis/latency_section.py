"""Online evaluations as a section: BLEU against latency, one curve for each system and policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmtgrid.analysis.latency import draw_curves
from nmtgrid.analysis.latency_results import Result, curves, published
from nmtgrid.analysis.section import Picture, Section, Table
from nmtgrid.metrics.latency import METRICS, Convention, Unit

TITLES = {
    "al": "average lagging AL", "ap": "average proportion AP",
    "dal": "differentiable average lagging DAL", "laal": "length-adaptive average lagging LAAL",
    "yaal": "YAAL", "cw": "consecutive wait CW", "max_cw": "longest consecutive wait",
}  # fmt: skip
_SHOWN = ("ap", "al", "dal", "cw", "laal")
_TEXT = """Quality against delay of online (simultaneous) decoding: tokenised BLEU in percent; \
latency in source {unit}s (AP: the share of the source), in the convention of {convention}. The \
ratio of lengths is hypothesis over reference, in {unit}s."""
_CONVENTIONS = {"thesis": "the thesis (|y| is the hypothesis')", "simuleval": "SimulEval"}


def section(
    results: Sequence[Result],
    metric: str = "al",
    unit: Unit = "token",
    convention: Convention = "thesis",
    published_as: str | None = None,
    title: str | None = None,
) -> Section:
    """Return the table of all settings, and the curves against `metric`.

    `published_as` names curves of the literature to lay beneath. Raises ConfigError for another.
    """
    theirs = [] if published_as is None else published(published_as)
    ours, levels = curves(results, metric, unit, convention)
    what = "" if metric == "ap" else f"source {unit}s, "

    def draw(path: Path) -> None:
        draw_curves(
            [*ours, *theirs],
            levels,
            path,
            title=title or "quality against latency",
            x_label=f"{TITLES[metric]} ({what}{convention} convention)",
            y_label="BLEU, tokenised (percent)",
        )

    rows = [_row(one, unit, convention) for one in results]
    shown = (*_SHOWN, "length_ratio")
    table = Table(
        f"BLEU tokenised (percent); latency in source {unit}s (AP: share), {convention} "
        f"convention;\nratio: {unit}s of hypothesis / reference",
        ["system", "", "BLEU", *(name.upper() for name in _SHOWN), "ratio"],
        [
            [one.system, one.setting.title, one.bleu, *(row[name] for name in shown)]
            for one, row in zip(results, rows, strict=True)
        ],
    )
    caption = f"BLEU against {TITLES[metric]}, a curve for each system and policy."
    return Section(
        "latency",
        "Online decoding: quality against latency",
        _TEXT.format(unit=unit, convention=_CONVENTIONS[convention]),
        [table],
        [Picture("latency", caption, draw)],
        {"unit": unit, "convention": convention, "metric": metric, "settings": rows},
    )


def _row(one: Result, unit: Unit, convention: Convention) -> dict[str, Any]:
    """Return a setting's figures, None for what there is not."""
    values = {name: one.latency(name, unit, convention) for name in (*METRICS, "length_ratio")}
    return {
        "system": one.system,
        **one.setting.values(),
        "bleu_tokenized": one.bleu,
        **{name: None if math.isnan(value) else value for name, value in values.items()},
    }
