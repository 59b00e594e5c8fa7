"""`nmtgrid analyze`: looks into translations and models."""

from __future__ import annotations

import typer

from nmtgrid.cli.analyze import align, models, quality, report, traces

app = typer.Typer(help="Look into translations and models.", no_args_is_help=True)
app.command("activations")(models.activations)
app.command("align")(align.align)
app.command("alignments")(traces.alignments)
app.command("buckets")(quality.buckets)
app.command("compare")(quality.compare)
app.command("curves")(models.curves)
app.command("difficulty")(quality.difficulty)
app.command("exits")(traces.exits)
app.command("latency")(models.latency)
app.command("lengths")(quality.lengths)
app.command("paths")(traces.paths)
app.command("report")(report.report)
