"""`nmtgrid analyze latency`: several online evaluations in one table and one picture."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.analyze.show import Format, Out, check_out, show
from nmtgrid.cli.options import JsonFile

Metric = Literal["al", "ap", "dal", "laal", "yaal", "cw", "max_cw"]


def command(
    results: Annotated[
        list[str],
        typer.Argument(
            metavar="RESULTS",
            help="Folders of `online-eval --out`, or their `results.json`; NAME=RESULTS renames.",
        ),
    ],
    out: Out = None,
    picture: Format = "png",
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
    check_out(out, json, [path for _, path in named])
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
    from nmtgrid.analysis.latency import latency_section, read_online_results

    online_results = [
        result for label, path in named for result in read_online_results(path, label)
    ]
    show(
        [latency_section(online_results, metric, unit, convention, published, title)],
        out,
        picture,
        json,
    )
