"""`nmtgrid analyze`: analyses of translations and models."""

from __future__ import annotations

import typer

from nmtgrid.cli.analyze import align, models, quality, report, traces
from nmtgrid.cli.options import add_command

app = typer.Typer(
    help="Analyse translations and models.",
    epilog="`nmtgrid analyze COMMAND --help` shows the options of each, with examples.",
    no_args_is_help=True,
)
add_command(app, "activations", models.activations)
add_command(app, "align", align.align)
add_command(app, "alignments", traces.alignments)
add_command(app, "buckets", quality.buckets)
add_command(app, "compare", quality.compare)
add_command(app, "curves", models.curves)
add_command(app, "difficulty", quality.difficulty)
add_command(app, "exits", traces.exits)
add_command(app, "latency", models.latency)
add_command(app, "lengths", quality.lengths)
add_command(app, "paths", traces.paths)
add_command(app, "report", report.report)
