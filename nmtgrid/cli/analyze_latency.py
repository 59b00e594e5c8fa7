"""`nmtgrid analyze latency`: several online evaluations in one table and one picture."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.files import split_label
from nmtgrid.cli.options import JsonFile, check_outputs, write_report

Metric = Literal["al", "ap", "dal", "laal", "yaal", "cw", "max_cw"]
_TITLES = {
    "al": "average lagging AL", "ap": "average proportion AP",
    "dal": "differentiable average lagging DAL", "laal": "length-adaptive average lagging LAAL",
    "yaal": "YAAL", "cw": "consecutive wait CW", "max_cw": "longest consecutive wait",
}  # fmt: skip
_SHOWN = ("ap", "al", "dal", "cw", "laal")


def command(
    results: Annotated[
        list[str],
        typer.Argument(
            metavar="RESULTS...",
            help="Folders of `online-eval --out`, or their `results.json`; NAME=RESULTS renames.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw BLEU against latency: .png or .svg.")
    ] = None,
    metric: Annotated[Metric, typer.Option(help="What it is drawn against.")] = "al",
    unit: Annotated[Literal["token", "word"], typer.Option(help="What latency counts.")] = "token",
    convention: Annotated[
        Literal["thesis", "simuleval"],
        typer.Option(help="Whose length |y| is: as in `online-eval`."),
    ] = "thesis",
    published: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Lay published curves under ours (with AL alone)."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Of the picture.")] = None,
    json: JsonFile = None,
) -> None:
    """Compare online evaluations: BLEU against latency, one curve a system and policy."""
    named = [split_label(text) for text in results]
    check_outputs({"--json": json, "--out": out}, {f"RESULTS {path}": path for _, path in named})
    faults = []
    if convention == "simuleval" and unit == "token":
        faults.append("SimulEval's convention counts words: add `--unit word`.")
    if published is not None and (metric, unit, convention) != ("al", "token", "thesis"):
        faults.append(
            "The published curves have AL in tokens, in the thesis' convention: leave out "
            "`--published`, or `--metric`, `--unit` and `--convention`."
        )
    if published is not None and out is None:
        faults.append("`--published` has no effect without a picture: add `--out FILE`.")
    if faults:
        raise ConfigError(faults)
    from nmtgrid.analysis import latency_results
    from nmtgrid.metrics.latency import METRICS

    found = [one for label, path in named for one in latency_results.read_results(path, label)]
    names = (*METRICS, "length_ratio")
    rows = [
        {
            "system": one.system,
            **one.setting.values(),
            "bleu_tokenized": one.bleu,
            **{name: _number(one.latency(name, unit, convention)) for name in names},
        }
        for one in found
    ]
    console.table(
        f"BLEU tokenised (percent); latency in source {unit}s (AP: share), {convention} "
        f"convention;\nratio: {unit}s of hypothesis / reference",
        ["system", "", "BLEU", *(name.upper() for name in _SHOWN), "ratio"],
        [
            [one.system, one.setting.title, f"{one.bleu:.2f}"]
            + [_told(row[name]) for name in (*_SHOWN, "length_ratio")]
            for one, row in zip(found, rows, strict=True)
        ],
    )
    report: dict[str, Any] = {
        "unit": unit, "convention": convention, "metric": metric, "settings": rows,
    }  # fmt: skip
    if out is not None:
        from nmtgrid.analysis.latency_curves import draw_curves

        ours, levels = latency_results.curves(found, metric, unit, convention)
        theirs = [] if published is None else latency_results.published(published)
        what = "" if metric == "ap" else f"source {unit}s, "
        draw_curves(
            [*ours, *theirs],
            levels,
            out,
            title=title or "quality against latency",
            x_label=f"{_TITLES[metric]} ({what}{convention} convention)",
            y_label="BLEU, tokenised (percent)",
        )
        report["pictures"] = [str(out)]
        console.say(f"Drawn: {out}")
    write_report(json, report)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _told(value: Any) -> str:
    return "-" if value is None else f"{value:.2f}"
