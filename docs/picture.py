"""Draws the figure of the README: alignment, latency and exits of three models of the toy corpus.

    python -m docs.picture --traces runs/toy/traces.jsonl --curve runs/docs/curve \\
        --exits runs/docs/exits.jsonl --out docs/pictures/overview.png

The traces are from the quickstart, the curve and the exits from the tutorials `docs/online.md` and
`docs/adaptive.md` (there `decode --exit fast-2.5 --traces FILE`). The exits in the committed figure
are from a narrower Transformer, `--set model.size=96`, after 700 small updates.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy

from nmtgrid.analysis.alignment.soft_alignments import by_words, shares
from nmtgrid.analysis.exits import ExitTraces, read_exits
from nmtgrid.analysis.plotting.figure import Axes, Figure
from nmtgrid.base.errors import NmtgridError
from nmtgrid.base.io.records import read_json
from nmtgrid.search.traces import Trace, read_traces

WIDTH, HEIGHT, DOTS = 10.6, 3.9, 150
"""Size in inches, and dots per inch; 1590 dots suffice for high-resolution screens."""
BLUE, ORANGE, INK, PALE = "#0072b2", "#d55e00", "#303030", "#9ecae1"


def draw(traces: Path, curve: Path, exits: Path, path: Path) -> None:
    """Draw an alignment, BLEU against latency, and exits side by side to the PNG `path`.

    Raises InputError for traces without alignments or exits, and for missing files.
    """
    figure = Figure(figsize=(WIDTH, HEIGHT))
    # Opaque, so that the figure is also readable on a dark page.
    figure.set_facecolor("white")
    left, middle, right = figure.subplots(1, 3, width_ratios=[1.15, 1.0, 1.0])
    draw_alignment(left, example(traces))
    draw_curve(middle, curve / "results.json")
    draw_exits(right, read_exits({"": exits})[0])
    for axes in (left, middle, right):
        axes.tick_params(labelsize=8, colors=INK, length=0)
        axes.title.set_color(INK)
        for spine in axes.spines.values():
            spine.set_color("#c0c0c0")
    figure.tight_layout(pad=1.2, w_pad=2.2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DOTS, metadata={"Software": ""})


def example(path: Path) -> Trace:
    """Return the trace of 7 to 9 source and target words with the most reordering, by words."""
    traces = [by_words(trace) for trace in read_traces(path) if trace.alignment is not None]
    lengths = range(7, 10)
    fitting = [
        trace for trace in traces if len(trace.source) in lengths and len(trace.target) in lengths
    ]
    return max(fitting, key=moved)


def moved(trace: Trace) -> float:
    """Return the mean distance of aligned source positions from the target positions."""
    attention = shares(trace)
    assert attention is not None
    rows = attention[:-1, :-1]
    return float(numpy.abs(rows.argmax(1) - numpy.arange(len(rows))).mean())


def draw_alignment(axes: Axes, trace: Trace) -> None:
    attention = shares(trace)
    assert attention is not None
    axes.imshow(attention[:-1, :-1], cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    axes.set_xticks(range(len(trace.source)), trace.source, rotation=50, ha="left")
    axes.set_yticks(range(len(trace.target)), trace.target)
    axes.xaxis.tick_top()
    axes.set_xlabel("Which source words each word came from", size=10, color=INK, labelpad=9)


def draw_curve(axes: Axes, path: Path) -> None:
    """Plot BLEU against average lagging for wait-k and, if evaluated, the oracle paths."""
    settings = read_json(path)["settings"]
    for policy, colour, name in (
        ("wait-k", BLUE, "wait-k"),
        ("oracle", ORANGE, "oracle (a bound)"),
    ):
        points = sorted((s["al"], s["bleu"], s.get("k")) for s in settings if s["policy"] == policy)
        if not points:
            continue
        al, bleu = [point[0] for point in points], [point[1] for point in points]
        axes.plot(al, bleu, "o-", color=colour, linewidth=2, markersize=5, label=name)
        for x, y, k in points:
            if policy == "wait-k":
                label = "all" if k is None else f"k = {k:g}"
                axes.annotate(label, (x, y), (5, -10), textcoords="offset points", size=7.5,
                              color=INK)  # fmt: skip
    axes.grid(color="#e8e8e8")
    axes.set_axisbelow(True)
    axes.margins(x=0.14, y=0.1)
    axes.legend(frameon=False, fontsize=8, loc="lower right", labelcolor=INK)
    axes.set_ylabel("BLEU", size=9, color=INK)
    axes.set_xlabel("average lagging (source tokens)", size=9, color=INK)
    axes.set_title("Translating while the source comes in", size=10)


def draw_exits(axes: Axes, traces: ExitTraces) -> None:
    """Plot the share of tokens that exit at each block: at sentence beginnings, and of all."""
    places = numpy.arange(1, traces.num_exits + 1)
    bars = ((traces.distribution(traces.at_beginning), PALE, "first tenth of a sentence"),
            (traces.distribution(), BLUE, "all tokens"))  # fmt: skip
    for index, (values, colour, name) in enumerate(bars):
        if values is not None:
            heights = [100 * value for value in values]
            axes.bar(places + 0.4 * index - 0.2, heights, 0.38, color=colour, label=name)
    axes.set_xticks(places)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    axes.set_ylabel("% of tokens", size=9, color=INK)
    axes.set_xlabel(f"decoder block, {traces.average_exit:.1f} in the mean", size=9, color=INK)
    axes.set_title("Leaving the decoder early", size=10)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draw the figure of the README.")
    parser.add_argument("--traces", type=Path, required=True, help="traces of the quickstart")
    parser.add_argument("--curve", type=Path, required=True, help="folder of `online-eval --out`")
    parser.add_argument("--exits", type=Path, required=True, help="traces of `decode --exit`")
    parser.add_argument("--out", type=Path, required=True, help="a PNG")
    asked = parser.parse_args(arguments)
    try:
        draw(asked.traces, asked.curve, asked.exits, asked.out)
    except NmtgridError as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
