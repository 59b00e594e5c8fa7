"""`nmtgrid analyze curves`: how trainings went, as a table and as pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError, StorageError
from nmtgrid.base.files import split_label
from nmtgrid.cli.options import JsonFile, check_outputs, write_report

if TYPE_CHECKING:
    from nmtgrid.analysis.curves import Run

_NOTES_SHOWN = 5


def command(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Model directories, or their `metrics.jsonl`; LABEL=MODEL names one.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|DIR", help="Draw: one .png or .svg, or a folder of single diagrams."
        ),
    ] = None,
    against: Annotated[
        Literal["minutes", "updates", "tokens"],
        typer.Option(help="What losses and BLEU are drawn against."),
    ] = "minutes",
    picture: Annotated[
        Literal["png", "svg"], typer.Option("--format", help="Kind of pictures in a folder.")
    ] = "png",
    json: JsonFile = None,
) -> None:
    """Show how trainings went: losses, perplexity, BLEU, speed; draw their curves side by side.

    Losses are in nats per target token, without label smoothing; best is the lowest on the
    validation split. Runs with `training.watch_gradients` also have the norms of gradients between
    the layers, and the ratio of the first to the last encoder layer's. Damaged lines of a log are
    left out, with a warning.
    """
    named = [split_label(text) for text in models]
    check_outputs({"--json": json}, {f"MODEL {path}": path for _, path in named})
    report = analyze(named, out, against, picture)
    _show(report["models"])
    for name in report["pictures"]:
        console.say(f"Drawn: {name}")
    write_report(json, report)


def analyze(
    named: Sequence[tuple[str | None, Path]],
    out: Path | None = None,
    against: Literal["minutes", "updates", "tokens"] = "minutes",
    picture: str = "png",
) -> dict[str, Any]:
    """Return the table and the points of all runs, and draw them; see the command."""
    from nmtgrid.analysis.curves import curves, read_runs, summary

    _check(out)
    runs = read_runs(named)
    for run in runs:
        _warn(run)
    drawn = [] if out is None else _draw(runs, out, against, picture)
    return {"models": [{**summary(run), **curves(run)} for run in runs], "pictures": drawn}


def _check(out: Path | None) -> None:
    if out is None or out.is_dir():
        return
    if out.suffix:
        from nmtgrid.analysis.plots import check_suffix

        check_suffix(out)
    elif out.exists():
        raise ConfigError(f"`--out {out}` is a file and no folder.", "Give a folder or a picture.")


def _warn(run: Run) -> None:
    for note in run.notes[:_NOTES_SHOWN]:
        console.warn(f"{note} The line is left out.")
    if len(run.notes) > _NOTES_SHOWN:
        console.warn(f"{run.path}: {len(run.notes):,} lines are left out in all.")


def _draw(
    runs: Sequence[Run], out: Path, against: Literal["minutes", "updates", "tokens"], picture: str
) -> list[str]:
    from nmtgrid.analysis.curve_panels import panels
    from nmtgrid.analysis.plots_lines import MOST_LINES, draw

    if len(runs) > MOST_LINES:
        raise ConfigError(
            f"More than {MOST_LINES} lines in one diagram cannot be told apart, but {len(runs)} "
            "models are given.", "Draw fewer at a time.",
        )  # fmt: skip
    found = panels(runs, against)
    is_file = bool(out.suffix) and not out.is_dir()
    try:
        (out.parent if is_file else out).mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise StorageError(
            f"The folder of {out} cannot be made: {fault.strerror}.", "Choose another `--out`."
        ) from fault
    if is_file:
        draw(list(found.values()), out)
        return [str(out)]
    for name, panel in found.items():
        draw([panel], out / f"{name}.{picture}")
    return [str(out / f"{name}.{picture}") for name in found]


def _show(rows: Sequence[dict[str, Any]]) -> None:
    from nmtgrid.analysis.labels import wrapped

    columns: dict[str, Callable[[dict[str, Any]], Any]] = {
        "model": lambda row: wrapped(row["name"], 14),
        "updates": lambda row: row["updates"],
        "min": lambda row: row["minutes"],
        "tok/s": lambda row: _told(row["tokens_per_second"], ",.0f"),
        "loss": lambda row: _told(row["valid_loss"], ".4f"),
        "ppl": lambda row: _told(row["valid_perplexity"], ".2f"),
        "BLEU": lambda row: _told(row["valid_bleu"], ".2f"),
    }
    if any(row["gradient_ratio"] is not None for row in rows):
        columns["h1/hN"] = lambda row: _told(row["gradient_ratio"], ".2g")
    told = [[tell(row) for tell in columns.values()] for row in rows]
    console.table(
        "Trainings: target tokens per second; loss in nats per token, perplexity and greedy BLEU\n"
        "at the best validation"
        + ("; last ratio of gradient norms" if "h1/hN" in columns else ""),
        list(columns), told,
    )  # fmt: skip


def _told(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
