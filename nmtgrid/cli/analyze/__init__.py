"""`nmtgrid analyze`: looks into translations and models."""

from __future__ import annotations

import typer

from nmtgrid.cli.analyze import activations as analyze_activations
from nmtgrid.cli.analyze import align, alignments, buckets, curves, difficulty
from nmtgrid.cli.analyze import compare as analyze_compare
from nmtgrid.cli.analyze import exits as analyze_exits
from nmtgrid.cli.analyze import latency as analyze_latency
from nmtgrid.cli.analyze import lengths as analyze_lengths
from nmtgrid.cli.analyze import paths as analyze_paths
from nmtgrid.cli.analyze import report as analyze_report

app = typer.Typer(help="Look into translations and models.", no_args_is_help=True)


app.command("activations")(analyze_activations.command)
app.command("align")(align.command)
app.command("alignments")(alignments.command)
app.command("buckets")(buckets.command)
app.command("compare")(analyze_compare.command)
app.command("curves")(curves.command)
app.command("difficulty")(difficulty.command)
app.command("exits")(analyze_exits.command)
app.command("latency")(analyze_latency.command)
app.command("lengths")(analyze_lengths.command)
app.command("paths")(analyze_paths.command)
app.command("report")(analyze_report.command)


@app.callback()
def _group() -> None:
    """Look into translations and models."""
