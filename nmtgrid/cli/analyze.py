"""`nmtgrid analyze`: looks into translations and models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError, InputError, StorageError
from nmtgrid.cli import (
    analyze_activations,
    analyze_align,
    analyze_buckets,
    analyze_curves,
    analyze_difficulty,
    analyze_exits,
    analyze_latency,
    analyze_lengths,
)
from nmtgrid.cli.options import JsonFile, check_outputs, write_report

if TYPE_CHECKING:
    from nmtgrid.analysis.alignments import AlignmentStatistics
    from nmtgrid.search.traces import Trace

_SHOWN = ("sentences", "entropy", "coverage")

app = typer.Typer(help="Look into translations and models.", no_args_is_help=True)


app.command("activations")(analyze_activations.command)
app.command("align")(analyze_align.command)
app.command("buckets")(analyze_buckets.command)
app.command("curves")(analyze_curves.command)
app.command("difficulty")(analyze_difficulty.command)
app.command("exits")(analyze_exits.command)
app.command("latency")(analyze_latency.command)
app.command("lengths")(analyze_lengths.command)


@app.callback()
def _group() -> None:
    """Look into translations and models."""


@app.command("alignments")
def alignments_command(
    traces: Annotated[
        list[Path], typer.Argument(metavar="TRACES...", help="Files of `decode --traces`.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR|FILE", help="Draw heat maps: a folder, or one .png or .svg."),
    ] = None,
    line: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Lines to draw, from 1.  [default: the first that aligns]"),
    ] = None,
    picture: Annotated[
        Literal["png", "svg"], typer.Option("--format", help="Kind of picture in a folder.")
    ] = "png",
    json: JsonFile = None,
) -> None:
    """Show how sharp alignments are and what they cover; draw them as heat maps.

    Entropy is in nats per target token (lower is surer), coverage the mean share of a source
    token that is aligned to; end symbols count on both sides.
    """
    check_outputs({"--json": json}, {f"TRACES {path}": path for path in traces})
    report = alignments(traces, out, line or [], picture)
    console.table(
        "Alignments",
        ["traces", "sentences", "entropy (nats)", "coverage (share)"],
        [
            [row["traces"], *("-" if row[name] is None else row[name] for name in _SHOWN)]
            for row in report["systems"]
        ],
    )
    for name in report["pictures"]:
        console.say(f"Drawn: {name}")
    write_report(json, report)


def alignments(
    traces: list[Path], out: Path | None, lines: list[int], picture: str = "png"
) -> dict[str, Any]:
    """Return the table of all files and draw the wanted lines; see the command."""
    from nmtgrid.analysis.alignments import statistics
    from nmtgrid.analysis.plots import alignment_map

    _check(traces, out, lines)
    from nmtgrid.search.traces import read_traces

    systems, drawn = [], []
    for path in traces:
        chosen: dict[int, Trace] = {}
        found = statistics(_choosing(read_traces(path), lines, chosen))
        if found is None and not chosen:
            raise InputError(
                "there is no alignment in it.",
                "Run `nmtgrid decode --traces FILE` with a model that aligns.",
                path=path,
            )
        if missing := [number for number in lines if number not in chosen]:
            raise InputError(f"it has no aligned line {missing[0]}.", path=path)
        systems.append({"traces": str(path), **_averages(found)})
        for number, trace in chosen.items() if out is not None else ():
            target = _target(out, path, number, picture)
            alignment_map(trace, target, title=f"{path.name}, line {number}")
            drawn.append(str(target))
    return {"systems": systems, "pictures": drawn}


def _averages(found: AlignmentStatistics | None) -> dict[str, Any]:
    """Return the table's columns; energies have no averages."""
    names = ("sentences", "entropy", "coverage", "source_tokens", "target_tokens")
    return {name: getattr(found, name, None) for name in names}


def _choosing(traces: Any, lines: list[int], chosen: dict[int, Trace]) -> Any:
    """Pass `traces` on, keeping the wanted lines, or the first that aligns."""
    for trace in traces:
        if trace.alignment is not None and (trace.line in lines if lines else not chosen):
            chosen[trace.line] = trace
        yield trace


def _check(traces: list[Path], out: Path | None, lines: list[int]) -> None:
    from nmtgrid.analysis.plots import SUFFIXES, check_suffix

    faults = [f"`--line` counts from 1, but is {number}." for number in lines if number < 1]
    if lines and out is None:
        faults.append("`--line` says what to draw: say where with `--out`.")
    if out is not None and out.suffix and not out.is_dir():
        check_suffix(out)
        if len(traces) * max(1, len(lines)) > 1:
            faults.append(f"`--out {out}` is one picture, but several are asked for.")
    elif out is not None and out.exists() and not out.is_dir():
        faults.append(f"`--out {out}` is a file and no folder.")
    stems = [_stem(path) for path in traces]
    if out is not None and len(set(stems)) < len(stems):
        faults.append(
            "Two of the traces have the same name: one's pictures would replace the other's."
        )
    if faults:
        raise ConfigError(faults, f"Give a folder, or one file ending in {' or '.join(SUFFIXES)}.")


def _target(out: Path | None, traces: Path, line: int, picture: str) -> Path:
    assert out is not None
    is_file = bool(out.suffix) and not out.is_dir()
    folder = out.parent if is_file else out
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise StorageError(
            f"The folder {folder} cannot be made: {fault.strerror}.", "Choose another `--out`."
        ) from fault
    return out if is_file else out / f"{_stem(traces)}.line-{line}.{picture}"


def _stem(traces: Path) -> str:
    return "standard-input" if str(traces) == "-" else traces.name.split(".")[0]
