"""`nmtgrid analyze latency`: several online evaluations in one table and one picture."""

from __future__ import annotations

import dataclasses
from typing import Literal

from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.analyze.show import Format, Out, check_out, show
from nmtgrid.cli.options import (
    CommandArguments,
    Excludes,
    JsonFile,
    Requires,
    argument,
    check_rules,
    option,
    takes,
)

Metric = Literal["al", "ap", "dal", "laal", "yaal", "cw", "max_cw"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatencyArguments(CommandArguments):
    """The arguments of `analyze latency`."""

    results: list[str] = argument(
        "Folders of `online-eval --out`, or their `results.json`; NAME=RESULTS renames.", "RESULTS"
    )
    out: Out = None
    picture: Format = "png"
    metric: Metric = option("What it is drawn against.", default="al")
    unit: Literal["token", "word"] = option("What latency counts.", default="token")
    convention: Literal["thesis", "simuleval"] = option(
        "Whose length |y| is: as in `online-eval`.", default="thesis"
    )
    published: str | None = option("Lay published curves under ours (with AL alone).", "NAME")
    title: str | None = option("Of the picture.")
    json: JsonFile = None


RULES = [
    # The default unit is the token, so that the other value is the word.
    Requires("convention", "unit", "SimulEval's convention counts words: add `--unit word`."),
    Excludes(
        "published",
        "metric unit convention",
        "The published curves have AL in tokens, in the thesis' convention: leave out "
        "`--published`, or `--metric`, `--unit` and `--convention`.",
    ),
    Requires(
        "published",
        "out",
        "`--published` has no effect without a picture: add `--out FILE`.",
    ),
]


@takes(LatencyArguments)
def command(arguments: LatencyArguments) -> None:
    """Compare online evaluations: BLEU against latency, one curve a system and policy."""
    named = [split_label(text) for text in arguments.results]
    check_out(arguments.out, arguments.json, [path for _, path in named])
    check_rules(arguments, RULES)
    from nmtgrid.analysis.latency import latency_section, read_online_results

    # A folder may have the results of several systems and policies.
    online_results = [
        result for label, path in named for result in read_online_results(path, label)
    ]
    section = latency_section(
        online_results,
        arguments.metric,
        arguments.unit,
        arguments.convention,
        arguments.published,
        arguments.title,
    )
    show([section], arguments.out, arguments.picture, arguments.json)
