"""`nmtgrid analyze`: looks into translations and models."""

from __future__ import annotations

import typer

from nmtgrid.cli import (
    analyze_activations,
    analyze_align,
    analyze_alignments,
    analyze_buckets,
    analyze_compare,
    analyze_curves,
    analyze_difficulty,
    analyze_exits,
    analyze_latency,
    analyze_lengths,
    analyze_paths,
    analyze_report,
)

app = typer.Typer(help="Look into translations and models.", no_args_is_help=True)


app.command("activations")(analyze_activations.command)
app.command("align")(analyze_align.command)
app.command("alignments")(analyze_alignments.command)
app.command("buckets")(analyze_buckets.command)
app.command("compare")(analyze_compare.command)
app.command("curves")(analyze_curves.command)
app.command("difficulty")(analyze_difficulty.command)
app.command("exits")(analyze_exits.command)
app.command("latency")(analyze_latency.command)
app.command("lengths")(analyze_lengths.command)
app.command("paths")(analyze_paths.command)
app.command("report")(analyze_report.command)


@app.callback()
def _group() -> None:
    """Look into translations and models."""
