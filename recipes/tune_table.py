"""The results of a sweep: ranking, table and figure of recipes/tune.sh.

A record describes a run of recipes/tune.py. Losses are validation losses in nats per target token;
test splits are not used, and BLEU does not affect the ranking.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtgrid.analysis.plotting.lines import Line, Panel, draw_panels
from nmtgrid.base import console
from nmtgrid.base.io.atomic import write_text
from recipes.tables import table_of
from recipes.tune_plan import Settings, Sweep, short_names

Record = dict[str, Any]
_STRONG, _PALE = 0, 5
"""Indices of line styles: a colour, and grey."""
_BEST, _OTHERS = "best settings", "other settings"
_LOSS = "validation loss (nats per target token)"
_COLUMNS = {
    "rung": "rung", "budget": "budget", "updates": "updates", "minutes": "minutes",
    "valid_nll": "valid. nats", "valid_bits": "bits", "valid_bleu": "greedy BLEU",
    "tokens_per_second": "tokens/s", "parameters": "parameters", "outcome": "",
}  # fmt: skip
"""Columns of the table after the settings."""
_DIGITS = {"valid_nll": ".4f", "valid_bits": ".4f", "tokens_per_second": ",.0f"}


def ranked(records: Sequence[Record]) -> list[int]:
    """Return the indices of the runs that finished, lowest loss first.

    Ties keep their order: that of the previous rung, or of the grid.
    """
    finished = [index for index, record in enumerate(records) if record["outcome"] == "finished"]
    return sorted(finished, key=lambda index: float(records[index]["valid_nll"]))


def last_runs(records: Sequence[Record]) -> list[Record]:
    """Return the last run of each setting, best first: by rung, then by loss, failed ones last.

    A setting that failed on a rung is listed after those that finished that rung.
    """
    last = {json.dumps(record["settings"]): record for record in records}
    rows = list(last.values())
    order = [rows[index] for index in ranked(rows)]
    order += [row for row in rows if row["outcome"] == "failed"]
    return sorted(order, key=lambda row: -int(row["rung"]))


def best_run(records: Sequence[Record]) -> Record | None:
    """Return the best run of the last rung that any run finished; None if none did."""
    finished = [record for record in records if record["outcome"] == "finished"]
    rung = max((record["rung"] for record in finished), default=0)
    last = [record for record in finished if record["rung"] == rung]
    return last[ranked(last)[0]] if last else None


def table_rows(records: Sequence[Record]) -> list[Record]:
    """Return the last run of each setting as a flat row, best first."""
    rows = []
    for record in last_runs(records):
        short, loss = short_names(record["settings"]), record["valid_nll"]
        row = {short[name]: value for name, value in record["settings"].items()}
        row |= {name: record.get(name) for name in _COLUMNS} | {"seed": record["seed"]}
        rows.append(row | {"valid_bits": None if loss is None else bits(loss)})
    return rows


def described(settings: Mapping[str, str]) -> str:
    """Return settings as readable text."""
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def bits(nats: float) -> float:
    """Return a loss in bits."""
    return nats / math.log(2)


def report(sweep: Sweep, records: Sequence[Record]) -> int:
    """Print and write the table, draw the figure, name the best run; return the exit code."""
    rows = table_rows(records)
    settings = list(short_names(sweep.grid).values())
    names = [*settings, *_COLUMNS]
    headings = [*settings, *_COLUMNS.values()]
    cells = [[_cell(name, row[name]) for name in names] for row in rows]
    title = f"{sweep.data}, {sweep.arch}, seed {sweep.seed}: best first, by validation loss"
    is_right = [name in _COLUMNS and name not in ("budget", "outcome") for name in names]
    console.table(title, headings, cells, is_right, console=console.output)
    write_text(sweep.out / "table.json", json.dumps(rows, indent=1) + "\n")
    write_text(sweep.out / "table.md", table_of(rows))
    for record in records:
        if record["outcome"] == "failed":
            console.warn(f"{described(record['settings'])} failed: {record['reason']}")
    best = best_run(records)
    if best is None:
        console.error("No run finished.", f"Their logs are in {sweep.out / 'runs'}.")
        return 1
    picture = sweep.out / "table.png"
    draw(records, sweep.grid, picture)
    console.say(f"Table: {sweep.out / 'table.md'}, {sweep.out / 'table.json'}; figure: {picture}")
    index = sweep.settings().index(best["settings"])
    full = sweep.training(index, best["settings"], sweep.schedule()[-1])
    if best["rung"] == full.rung.number:
        console.say(f"The best model is in {sweep.out / 'runs' / full.name}")
    else:
        console.warn(f"no run finished the last rung: the best had only {best['budget']}.")
    console.say(f"The best settings with the full budget ({full.rung.budget}):")
    console.output.print(shlex.join(sweep.command(full, "MODEL")), markup=False)
    return 0


def _cell(name: str, value: Any) -> Any:
    if value is None:
        return "-"
    return format(value, _DIGITS[name]) if name in _DIGITS else value


def draw(records: Sequence[Record], grid: Mapping[str, Sequence[str]], path: Path) -> None:
    """Plot the losses of all runs over time and, for the first rung, over each setting's values."""
    best = best_run(records)
    assert best is not None
    finished = [record for record in records if record["outcome"] == "finished"]
    short = short_names(grid)
    title = "Best: " + ", ".join(f"{short[name]} {best['settings'][name]}" for name in grid)
    curves = []
    # The best first, as in the legend.
    for record in sorted(finished, key=lambda record: record["settings"] != best["settings"]):
        is_best = record["settings"] == best["settings"]
        name, style = (_BEST, _STRONG) if is_best else (_OTHERS, _PALE)
        curve = record["curve"]
        curves.append(
            Line(name, curve["minutes"], curve["nll"], style, faint=not is_best, mark=True)
        )
    # Budgets grow geometrically: on a linear scale, the runs of the first rung would overlap.
    rungs = len({record["rung"] for record in finished})
    panels = [Panel(title, "minutes of the run", _LOSS, curves, logarithmic_x=rungs > 1)]
    # The first rung has all settings with the same budget; later rungs have only the best.
    first = [record for record in finished if record["rung"] == 1]
    panels += [
        Panel(
            f"{short[name]}, {len(first)} runs of {records[0]['budget']}", name, _LOSS,
            marginal_lines(first, name, values, best["settings"]), places=values,
        )
        for name, values in grid.items()
        if len(values) > 1
    ]  # fmt: skip
    draw_panels(panels, path)


def marginal_lines(
    records: Sequence[Record], name: str, values: Sequence[str], best: Settings
) -> list[Line]:
    """Return the losses over the values of a setting; a line joins runs that differ only in it."""
    groups: dict[str, tuple[list[float], list[float]]] = {}
    own = _without(best, name)
    for index, value in enumerate(values):
        for record in records:
            if record["settings"][name] == value:
                x, y = groups.setdefault(_without(record["settings"], name), ([], []))
                x.append(index)
                y.append(record["valid_nll"])
    return [
        Line(
            _BEST if others == own else _OTHERS, x, y,
            _STRONG if others == own else _PALE, faint=others != own, mark=True,
        )
        for others, (x, y) in groups.items()
    ]  # fmt: skip


def _without(settings: Settings, name: str) -> str:
    return json.dumps({key: value for key, value in settings.items() if key != name})
