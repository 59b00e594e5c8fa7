"""`nmtgrid analyze curves`: how trainings went, as a table and as pictures."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from nmtgrid.base import console
from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.analyze.show import Format, Out, check_out, show
from nmtgrid.cli.options import CommandArguments, JsonFile, argument, option, takes

if TYPE_CHECKING:
    from nmtgrid.analysis.training_curves import Run

_NOTES_SHOWN = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class CurvesArguments(CommandArguments):
    """The arguments of `analyze curves`."""

    models: list[str] = argument(
        "Model directories, or their `metrics.jsonl`; LABEL=MODEL names one.", "MODEL..."
    )
    out: Out = None
    against: Literal["minutes", "updates", "tokens"] = option(
        "What losses and BLEU are drawn against.", default="minutes"
    )
    picture: Format = "png"
    json: JsonFile = None


@takes(CurvesArguments)
def command(arguments: CurvesArguments) -> None:
    """Show how trainings went: losses, perplexity, BLEU, speed; draw their curves side by side.

    Losses are in nats per target token, without label smoothing; best is the lowest on the
    validation split, or what the objective goes by instead (`exits-halting`, `dynamic`). Runs with
    `training.watch_gradients` also have the norms of gradients between the layers, and the ratio of
    the first to the last encoder layer's. Damaged lines of a log are left out, with a warning. One
    picture has all diagrams, a folder one file for each.
    """
    out, against = arguments.out, arguments.against
    named = [split_label(text) for text in arguments.models]
    check_out(out, arguments.json, [path for _, path in named])
    from nmtgrid.analysis.plotting.lines import draw_panels
    from nmtgrid.analysis.section import Picture
    from nmtgrid.analysis.training_curves import check_drawable, panels, read_runs, training_section

    if out is not None:
        check_drawable(len(named))
    runs = read_runs(named)
    for run in runs:
        _warn(run)
    section = training_section(runs, against)
    if out is not None and out.suffix and not out.is_dir():
        # One file has them all, two abreast.
        whole = Picture(
            "curves", "", lambda path: draw_panels([*panels(runs, against).values()], path)
        )
        section = dataclasses.replace(section, pictures=[whole])
    show([section], out, arguments.picture, arguments.json)


def _warn(run: Run) -> None:
    # A file that is no log at all would fill the screen.
    for note in run.notes[:_NOTES_SHOWN]:
        console.warn(f"{note} The line is left out.")
    if len(run.notes) > _NOTES_SHOWN:
        console.warn(f"{run.path}: {len(run.notes):,} lines are left out in all.")
